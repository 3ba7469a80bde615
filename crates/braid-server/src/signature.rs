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
    /// The flags as [`bits_of`] returns them: each request is asked for several.
    pub(crate) flag_bits: u16,
    /// Index of the first key, of the last (negative: from the end), and the step.
    pub(crate) keys: (i32, i32, i32),
    /// Family, as COMMAND DOCS and the categories of access control name it.
    pub(crate) group: &'static str,
}

impl Signature {
    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.flag_bits & 1 << flag as u16 != 0
    }

    /// Returns whether this many arguments, with the name, are allowed.
    pub(crate) fn accepts(&self, arguments: usize) -> bool {
        fits(self.arity, arguments)
    }
}

/// Returns a set of flags with a bit for each.
pub(crate) const fn bits_of(flags: &[Flag]) -> u16 {
    let (mut bits, mut at) = (0, 0);
    while at < flags.len() {
        bits |= 1 << flags[at] as u16;
        at += 1;
    }
    bits
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
