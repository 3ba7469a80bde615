//! Tickets of asynchronous commits.

use std::ffi::{CString, c_char, c_void};

use braid::Ticket;

use crate::boundary::{Failure, Outcome, call};
use crate::handle_error::Ended;
use crate::handles::braid_ticket;
use crate::memory::{Optional, Out, UserData};
use crate::registry::TICKETS;
use crate::status::{
    braid_status::{self, BRAID_OK, BRAID_PENDING},
    of_error,
};

/// Returns a ticket, if the caller wants it.
#[inline(always)]
pub(crate) fn give_ticket(mut out: Optional<*mut braid_ticket>, ticket: Ticket) -> Outcome<()> {
    if out.is_wanted() {
        out.set(TICKETS.insert(ticket, 0)?);
    }
    Ok(())
}

/// Sets `seqno` to the transaction's sequence number, its place in the serial order.
///
/// # Safety
///
/// `seqno` is NULL or points to writable memory for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_ticket_seqno(
    ticket: *mut braid_ticket,
    seqno: *mut u64,
) -> braid_status {
    call(|| {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(seqno, "seqno") }?;
        out.set(TICKETS.lock(ticket)?.seqno());
        Ok(BRAID_OK)
    })
}

/// Returns, without waiting, whether the transaction is durable: `BRAID_OK` if it is,
/// `BRAID_PENDING` if the outcome is not known yet, `BRAID_POISONED` if the log failed before.
#[unsafe(no_mangle)]
pub extern "C" fn braid_ticket_poll(ticket: *mut braid_ticket) -> braid_status {
    call(|| match TICKETS.lock(ticket)?.try_wait() {
        Some(outcome) => Ok(outcome.map(|_| BRAID_OK)?),
        None => Ok(BRAID_PENDING),
    })
}

/// Waits until the transaction is durable. Returns `BRAID_POISONED` if the log failed before. The
/// ticket stays valid, and further calls return the same result.
#[unsafe(no_mangle)]
pub extern "C" fn braid_ticket_wait(ticket: *mut braid_ticket) -> braid_status {
    call(|| {
        TICKETS.lock(ticket)?.wait()?;
        Ok(BRAID_OK)
    })
}

/// Receives the outcome of a commit: with `BRAID_OK`, the transaction `seqno` is durable. Otherwise
/// `message`, which is valid during the call and NULL with `BRAID_OK`, gives the reason.
pub type braid_durable_callback = Option<
    unsafe extern "C" fn(
        data: *mut c_void,
        status: braid_status,
        seqno: u64,
        message: *const c_char,
    ),
>;

/// Exchanges a ticket for a callback: the function frees the ticket, and calls `callback` once,
/// when the outcome is known. If it is known already, it makes the call at once, on this thread;
/// otherwise the thread that completes the flush makes it. The callback must return quickly,
/// because others wait for that thread. It must not wait for a commit, a sync or a checkpoint of
/// the database, and must not close the database.
///
/// # Safety
///
/// `callback` may be called with `data` from any thread. It must not unwind or call `longjmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_ticket_on_durable(
    ticket: *mut braid_ticket,
    callback: braid_durable_callback,
    data: *mut c_void,
) -> braid_status {
    call(|| {
        let callback = callback.ok_or(Failure::null("callback"))?;
        let ticket = TICKETS.end(ticket, Ended::CalledBack)?;
        let seqno = ticket.seqno();
        let data = UserData::new(data);
        ticket.on_durable(move |outcome| {
            let (status, message) = match outcome {
                Ok(_) => (BRAID_OK, None),
                Err(error) => {
                    let message = error.to_string().replace('\0', "\\0");
                    (of_error(&error), CString::new(message).ok())
                }
            };
            let text = message.as_ref().map_or(std::ptr::null(), |m| m.as_ptr());
            // SAFETY: this function's contract.
            unsafe { callback(data.get(), status, seqno, text) }
        });
        Ok(BRAID_OK)
    })
}

/// Frees a ticket. The transaction becomes durable all the same. NULL is allowed and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn braid_ticket_free(ticket: *mut braid_ticket) -> braid_status {
    call(|| {
        if !ticket.is_null() {
            TICKETS.free(ticket, Ended::Freed)?;
        }
        Ok(BRAID_OK)
    })
}
