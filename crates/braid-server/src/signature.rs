//! What a command is called, and how it is used.

/// Properties of a command, with the names of COMMAND INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    Write,
    Readonly,
    Denyoom,
    Admin,
    Pubsub,
    Noscript,
    Blocking,
    Loading,
    Fast,
    NoAuth,
    NoMulti,
}

impl Flag {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Flag::Write => "write",
            Flag::Readonly => "readonly",
            Flag::Denyoom => "denyoom",
            Flag::Admin => "admin",
            Flag::Pubsub => "pubsub",
            Flag::Noscript => "noscript",
            Flag::Blocking => "blocking",
            Flag::Loading => "loading",
            Flag::Fast => "fast",
            Flag::NoAuth => "no_auth",
            Flag::NoMulti => "no_multi",
        }
    }
}

/// What a command is called, and how it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature {
    /// Name in lower case.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative: at least as many.
    pub(crate) arity: i32,
    pub(crate) flags: &'static [Flag],
    /// Index of the first key, of the last (negative: from the end), and the step.
    pub(crate) keys: (i32, i32, i32),
    /// Family, as COMMAND DOCS and the categories of access control name it.
    pub(crate) group: &'static str,
}

impl Signature {
    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// Returns whether this many arguments, with the name, are allowed.
    pub(crate) fn accepts(&self, arguments: usize) -> bool {
        fits(self.arity, arguments)
    }
}

/// Returns whether a number of arguments fits an [arity](Signature::arity).
pub(crate) fn fits(arity: i32, arguments: usize) -> bool {
    let least = arity.unsigned_abs() as usize;
    if arity < 0 {
        arguments >= least
    } else {
        arguments == least
    }
}
