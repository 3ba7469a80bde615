//! The functions in SQL, and `braid_wait()` in C, which waits until what was committed is durable.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use crate::abi::{
    Connection, Context, DIRECT_ONLY, ERROR, FCNTL_WAIT, MISUSE, NOMEM, NOTFOUND, OK, ROW,
    SqlFunction, UTF8, Value,
};
use crate::database::guarded;
use crate::last_error;
use crate::library::{Functions, RegisterError, functions};

/// The extension's functions in SQL: names and numbers of arguments.
const FUNCTIONS: [(&CStr, c_int, SqlFunction); 3] = [
    (c"braid_wait", 0, wait_in_sql),
    (c"braid_wait", 1, wait_in_sql),
    (c"braid_error", 0, error_in_sql),
];

/// Why a wait failed.
struct Failure {
    code: c_int,
    message: String,
}

impl Failure {
    fn new(code: c_int, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

/// Makes SQLite define the functions in every connection that is opened from now on.
pub(crate) fn define_when_opened(functions: &Functions) -> Result<(), RegisterError> {
    // SAFETY: SQLite calls the function with the arguments of its type.
    match unsafe { (functions.auto_extension)(opened) } {
        OK => Ok(()),
        code => Err(RegisterError::Refused { code }),
    }
}

/// Defines the functions in a connection.
///
/// # Safety
///
/// The connection is open.
pub(crate) unsafe fn define(
    functions: &Functions,
    connection: *mut Connection,
) -> Result<(), RegisterError> {
    for (name, count, function) in FUNCTIONS {
        let flags = UTF8 | DIRECT_ONLY;
        // SAFETY: the connection is open, and the function has the type that SQLite calls.
        let code = unsafe {
            (functions.create_function)(
                connection,
                name.as_ptr(),
                count,
                flags,
                null_mut(),
                Some(function),
                None,
                None,
                None,
            )
        };
        if code != OK {
            return Err(RegisterError::Refused { code });
        }
    }
    Ok(())
}

unsafe extern "C" fn opened(
    connection: *mut Connection,
    _: *mut *mut c_char,
    _: *const c_void,
) -> c_int {
    guarded(ERROR, || {
        let Some(functions) = functions() else {
            return OK;
        };
        // SAFETY: SQLite passes the connection that it opens.
        match unsafe { define(functions, connection) } {
            Ok(()) => OK,
            Err(_) => NOMEM,
        }
    })
}

/// `braid_wait()` waits for all databases of the connection, and `braid_wait(schema)` for one.
unsafe extern "C" fn wait_in_sql(context: *mut Context, count: c_int, values: *mut *mut Value) {
    let Some(functions) = functions() else {
        return;
    };
    let code = guarded(ERROR, || {
        // SAFETY: SQLite passes as many values as it says. A string of SQLite's lasts during the call.
        let schema = unsafe {
            let text = match count {
                0 => null(),
                _ => (functions.value_text)(*values),
            };
            (!text.is_null()).then(|| CStr::from_ptr(text))
        };
        // SAFETY: the context is that of a connection, which is open.
        match unsafe { wait(functions, (functions.context_connection)(context), schema) } {
            Ok(()) => OK,
            Err(failure) => {
                let message = CString::new(failure.message).unwrap_or_default();
                // SAFETY: SQLite copies the message.
                unsafe { (functions.result_error)(context, message.as_ptr(), -1) };
                failure.code
            }
        }
    });
    // SAFETY: the context is valid during the call. The string is constant, which the missing
    // destructor says.
    unsafe {
        match code {
            OK => (functions.result_text)(context, c"durable".as_ptr(), -1, None),
            // Keeps the message.
            code => (functions.result_error_code)(context, code),
        }
    }
}

/// `braid_error()` returns why the extension refused something, or null.
unsafe extern "C" fn error_in_sql(context: *mut Context, _: c_int, _: *mut *mut Value) {
    guarded(ERROR, || {
        if let (Some(functions), Some(reason)) = (functions(), last_error::take()) {
            let reason = functions.string(&reason.to_string_lossy());
            // SAFETY: the context is valid during the call, and SQLite frees the copy. If there was no
            // memory for one, the answer is null.
            unsafe { (functions.result_text)(context, reason, -1, Some(functions.free)) };
        }
        OK
    });
}

/// Waits until everything that was committed to a database of a connection is durable; without a
/// name, to all of its databases. Returns SQLite's code; the C header explains the codes.
///
/// # Safety
///
/// The connection is a `sqlite3 *` that is open, of the SQLite with which the VFS was registered first.
/// The name is a string, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_sqlite_wait(
    connection: *mut c_void,
    schema: *const c_char,
) -> c_int {
    guarded(ERROR, || {
        let Some(functions) = functions() else {
            return MISUSE;
        };
        // SAFETY: as the caller says.
        let waited = unsafe {
            let schema = (!schema.is_null()).then(|| CStr::from_ptr(schema));
            wait(functions, connection.cast(), schema)
        };
        waited.map_or_else(|failure| failure.code, |()| OK)
    })
}

/// # Safety
///
/// The connection is open.
unsafe fn wait(
    functions: &Functions,
    connection: *mut Connection,
    schema: Option<&CStr>,
) -> Result<(), Failure> {
    let schemas = match schema {
        Some(schema) => vec![schema.to_owned()],
        // SAFETY: as the caller says.
        None => unsafe { schemas(functions, connection) }?,
    };
    let mut is_ours = false;
    for name in &schemas {
        let mut reason = null_mut::<c_char>();
        // SAFETY: the connection is open, and the argument is a place for a message, which is then ours
        // to free.
        let (code, reason) = unsafe {
            let argument = (&raw mut reason).cast();
            let code = (functions.file_control)(connection, name.as_ptr(), FCNTL_WAIT, argument);
            let text = (!reason.is_null()).then(|| CStr::from_ptr(reason));
            let text = text.map(|text| text.to_string_lossy().into_owned());
            (functions.free)(reason.cast());
            (code, text)
        };
        let name = name.to_string_lossy();
        match code {
            OK => is_ours = true,
            NOTFOUND => {}
            ERROR if reason.is_none() => {
                let message = format!("cannot wait for the database {name:?}: there is none");
                return Err(Failure::new(code, message));
            }
            code => {
                let reason = reason.unwrap_or_else(|| format!("SQLite answers {code}"));
                let message = format!("cannot wait for the database {name:?}: {reason}");
                return Err(Failure::new(code, message));
            }
        }
    }
    if is_ours {
        return Ok(());
    }
    let what = match schema {
        Some(name) => format!("the database {:?} was not", name.to_string_lossy()),
        None => "no database of the connection was".to_owned(),
    };
    let message = format!("cannot wait: {what} opened with the VFS \"braid\"");
    Err(Failure::new(NOTFOUND, message))
}

/// The names of the databases of a connection.
///
/// # Safety
///
/// The connection is open.
unsafe fn schemas(
    functions: &Functions,
    connection: *mut Connection,
) -> Result<Vec<CString>, Failure> {
    let mut statement = null_mut();
    let sql = c"PRAGMA database_list".as_ptr();
    let mut names = Vec::new();
    // SAFETY: the connection is open; the statement is finalized once, and a column's text is copied
    // before the next step.
    let code = unsafe {
        let mut code = (functions.prepare)(connection, sql, -1, &raw mut statement, null_mut());
        while code == OK && (functions.step)(statement) == ROW {
            let name = (functions.column_text)(statement, 1);
            if name.is_null() {
                code = NOMEM;
            } else {
                names.push(CStr::from_ptr(name).to_owned());
            }
        }
        match (functions.finalize)(statement) {
            OK => code,
            failed => failed,
        }
    };
    if code != OK {
        let message = format!("cannot list the databases to wait for: SQLite answers {code}");
        return Err(Failure::new(code, message));
    }
    Ok(names)
}
