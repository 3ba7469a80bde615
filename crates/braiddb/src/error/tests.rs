use super::*;

/// Returns the next variant, with values; `None` after the last one. A new variant does not
/// compile until it is added.
#[expect(clippy::too_many_lines, reason = "a line or two for each variant")]
fn next(error: &Error) -> Option<Error> {
    let (name, text) = (|| String::from("books"), || String::from("reason"));
    let path = || PathBuf::from("/db");
    Some(match error {
        Error::Conflict(ConflictKind::Read) => Error::Conflict(ConflictKind::Range),
        Error::Conflict(ConflictKind::Range) => Error::Conflict(ConflictKind::Deadlock),
        Error::Conflict(ConflictKind::Deadlock) => Error::Conflict(ConflictKind::Write),
        Error::Conflict(ConflictKind::Write) => Error::Conflict(ConflictKind::Moved),
        Error::Conflict(ConflictKind::Moved) => Error::SelfDeadlock,
        Error::SelfDeadlock => Error::LockTimeout {
            timeout: Duration::from_secs(1),
        },
        Error::LockTimeout { .. } => Error::Corrupted {
            what: text(),
            location: "data.braid, page 7".into(),
        },
        Error::Corrupted { .. } => Error::OutOfSpace { what: text() },
        Error::OutOfSpace { .. } => Error::Poisoned { cause: text() },
        Error::Poisoned { .. } => Error::Incompatible { what: text() },
        Error::Incompatible { .. } => Error::Locked {
            path: path(),
            holder: Some(7),
        },
        Error::Locked { .. } => Error::NotADatabase {
            path: path(),
            reason: text(),
        },
        Error::NotADatabase { .. } => Error::LogDirectory {
            path: path(),
            reason: text(),
        },
        Error::LogDirectory { .. } => Error::ReadOnly { path: path() },
        Error::ReadOnly { .. } => Error::KeyTooLong { len: 2, max: 1 },
        Error::KeyTooLong { .. } => Error::ValueTooLong { len: 2, max: 1 },
        Error::ValueTooLong { .. } => Error::TransactionTooLarge { max: 1 },
        Error::TransactionTooLarge { .. } => Error::OutOfOrder {
            key: "a".into(),
            before: "b".into(),
        },
        Error::OutOfOrder { .. } => Error::InvalidSavepoint,
        Error::InvalidSavepoint => Error::TableNotFound { name: name() },
        Error::TableNotFound { .. } => Error::TableExists { name: name() },
        Error::TableExists { .. } => Error::TableDropped { name: name() },
        Error::TableDropped { .. } => Error::InvalidTableName { name: name() },
        Error::InvalidTableName { .. } => Error::TableTypeMismatch {
            name: name(),
            found: "u64 -> string".into(),
            asked: "u64 -> u64".into(),
        },
        Error::TableTypeMismatch { .. } => Error::TableOptionsMismatch {
            name: name(),
            found: Box::default(),
            asked: Box::default(),
        },
        Error::TableOptionsMismatch { .. } => Error::ForeignTable { name: name() },
        Error::ForeignTable { .. } => Error::Decode {
            type_name: "u64",
            reason: text(),
        },
        Error::Decode { .. } => Error::InvalidOption {
            option: "lanes",
            reason: text(),
        },
        Error::InvalidOption { .. } => Error::SnapshotExists { name: name() },
        Error::SnapshotExists { .. } => Error::SnapshotTooOld { seqno: 1, max: 2 },
        Error::SnapshotTooOld { .. } => Error::PositionLost {
            asked: 1,
            oldest: 2,
        },
        Error::PositionLost { .. } => Error::SeqnoNotFound {
            seqno: 2,
            newest: 1,
        },
        // A position has no constructor for tests; its message is the attribute's text.
        Error::ForeignPosition { .. } | Error::SeqnoNotFound { .. } => {
            Error::FeedNotFound { name: name() }
        }
        Error::FeedNotFound { .. } => Error::SnapshotNotFound { name: name() },
        Error::SnapshotNotFound { .. } => Error::OpenedReadOnly,
        Error::OpenedReadOnly => Error::Backup(BackupError::Nothing),
        Error::Backup(_) => Error::Tablespace(TablespaceError::NotFound { name: name() }),
        Error::Tablespace(TablespaceError::NotFound { .. }) => {
            Error::Tablespace(TablespaceError::Exists { name: name() })
        }
        Error::Tablespace(TablespaceError::Exists { .. }) => {
            Error::Tablespace(TablespaceError::InvalidName { name: name() })
        }
        Error::Tablespace(TablespaceError::InvalidName { .. }) => {
            let (name, max) = (name(), 63);
            Error::Tablespace(TablespaceError::TooMany { name, max })
        }
        Error::Tablespace(TablespaceError::TooMany { .. }) => {
            let (name, table) = (name(), name());
            Error::Tablespace(TablespaceError::NotEmpty { name, table })
        }
        Error::Tablespace(TablespaceError::NotEmpty { .. }) => {
            Error::Tablespace(TablespaceError::Busy { name: name() })
        }
        Error::Tablespace(TablespaceError::Busy { .. }) => {
            let (table, asked, found) = (name(), name(), "main".into());
            Error::Tablespace(TablespaceError::OtherTablespace {
                table,
                asked,
                found,
            })
        }
        Error::Tablespace(TablespaceError::OtherTablespace { .. }) => {
            let (name, path, reason) = (name(), path(), text());
            Error::Tablespace(TablespaceError::Missing { name, path, reason })
        }
        Error::Tablespace(TablespaceError::Missing { .. }) => {
            let (name, path) = (name(), PathBuf::new());
            Error::Tablespace(TablespaceError::OtherState {
                name,
                path,
                found: 1,
                expected: 2,
            })
        }
        Error::Tablespace(TablespaceError::OtherState { .. }) => {
            let (name, what, location) = (name(), "the log ends".into(), "log-00, byte 7".into());
            Error::Tablespace(TablespaceError::Undecided {
                name,
                what,
                location,
            })
        }
        Error::Tablespace(TablespaceError::Undecided { .. }) => {
            Error::Tablespace(TablespaceError::Unsupported {
                operation: "make a backup",
                name: name(),
                advice: "export its tables",
            })
        }
        // The others have the text of `Missing`.
        Error::Tablespace(_) => Error::Closed,
        Error::Closed => Error::Forked,
        Error::Forked => Error::io("cannot open /db", io::ErrorKind::PermissionDenied.into()),
        // Missing pages have no constructor for tests; the message is the attribute's text.
        Error::Io { .. } | Error::NotInMemory(_) => return None,
    })
}

#[test]
fn messages_begin_small_and_have_no_full_stop() {
    let first = Error::Conflict(ConflictKind::Read);
    let all = std::iter::successors(Some(first), next);
    let mut seen = 0;
    for message in all.map(|error| error.to_string()) {
        seen += 1;
        assert!(message.starts_with(char::is_lowercase), "{message}");
        assert!(!message.ends_with(['.', '!']), "{message}");
        assert!(
            !message.contains("  ") && !message.contains('\n'),
            "{message}"
        );
    }
    assert!(seen > 35, "{seen}");
}

/// Every error of the log and the store keeps its message when it is converted to one of the
/// database.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn errors_of_the_log_and_the_store_read_as_well() {
    let (what, cause) = (|| String::from("cannot write 4096 bytes to log-0"), "cause");
    let of_log = [
        (
            LogError::Poisoned {
                cause: cause.into(),
            },
            cause,
        ),
        (
            LogError::Corrupted {
                what: what(),
                file: "log-0".into(),
                offset: 7,
            },
            "(log-0, byte 7)",
        ),
        (LogError::Incompatible { what: what() }, "cannot write"),
        (
            LogError::Released {
                file: "log-0".into(),
            },
            "log-0",
        ),
        (
            LogError::Options {
                option: "lanes",
                reason: what(),
            },
            "invalid option lanes: ",
        ),
        (
            LogError::OutOfSpace {
                needed: 1,
                used: 2,
                limit: 3,
                device_full: false,
                kept_for: Some("the archive".into()),
            },
            "cannot append 1 bytes to the log: it has 2 of at most 3 bytes, kept for the archive",
        ),
        (
            LogError::OutOfSpace {
                needed: 1,
                used: 2,
                limit: 0,
                device_full: true,
                kept_for: None,
            },
            "cannot append 1 bytes to the log: the device is full",
        ),
        (LogError::Closed, "open it again"),
        (LogError::Forked, "after the fork"),
    ];
    let of_store = [
        (
            StoreError::Corrupted {
                what: what(),
                location: "page 7".into(),
            },
            "(page 7)",
        ),
        (
            StoreError::OutOfSpace { what: what() },
            "out of space: cannot write",
        ),
        (StoreError::Incompatible { what: what() }, "cannot write"),
        (
            StoreError::Options {
                option: "pool_bytes",
                reason: what(),
            },
            "pool_bytes",
        ),
        (StoreError::PoolExhausted, "pool_bytes"),
        (
            StoreError::Poisoned {
                cause: cause.into(),
            },
            cause,
        ),
    ];
    let of_log = of_log.map(|(error, part)| (error.to_string(), Error::from(error), part));
    let of_store = of_store.map(|(error, part)| (error.to_string(), Error::from(error), part));
    for (own, error, part) in of_log.into_iter().chain(of_store) {
        let message = error.to_string();
        assert!(message.contains(part), "{message}");
        for message in [own, message] {
            assert!(message.starts_with(char::is_lowercase), "{message}");
            assert!(
                !message.ends_with('.') && !message.contains("  "),
                "{message}"
            );
        }
    }
}

/// An exceeded quota is a full device, in whatever operation it occurs.
#[test]
fn a_lack_of_space_is_one_error() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
        let (what, source) = (String::from("writing"), Arc::new(io::Error::from(kind)));
        let errors = [
            Error::io("writing", kind.into()),
            LogError::Io { what, source }.into(),
        ];
        for error in errors {
            assert!(matches!(error, Error::OutOfSpace { .. }), "{error:?}");
        }
    }
}
