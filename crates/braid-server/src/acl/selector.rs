//! Selectors: commands, keys and channels that go together.

use bytes::Bytes;

use super::Denied;
use super::access::{access, pattern_of_keys};
use super::commands::{CommandRules, Knows};
use crate::glob::matches;
use crate::signature::Signature;

/// What happens to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) reads: bool,
    pub(super) writes: bool,
}

/// Keys that may be read, written, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyPattern {
    pattern: Vec<u8>,
    access: Access,
}

impl KeyPattern {
    fn allows(&self, key: &[u8], wanted: Access) -> bool {
        self.access.reads >= wanted.reads
            && self.access.writes >= wanted.writes
            && matches(&self.pattern, key)
    }

    fn is_everything(&self) -> bool {
        self.pattern == b"*" && self.access.reads && self.access.writes
    }

    fn describe(&self) -> String {
        let pattern = String::from_utf8_lossy(&self.pattern);
        match (self.access.reads, self.access.writes) {
            (true, true) => format!("~{pattern}"),
            (true, false) => format!("%R~{pattern}"),
            _ => format!("%W~{pattern}"),
        }
    }
}

/// Commands, keys and channels that go together: a request is allowed if one selector of its user
/// allows all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    pub(super) commands: CommandRules,
    keys: Vec<KeyPattern>,
    channels: Vec<Vec<u8>>,
}

impl Selector {
    /// Allows everything.
    pub(super) fn everything() -> Selector {
        let mut selector = Selector::default();
        for rule in ["+@all", "~*", "&*"] {
            let _ = selector.apply(rule.as_bytes(), |_| false);
        }
        selector
    }

    pub(super) fn allows_everything(&self) -> bool {
        self.commands.allows_all() && self.allows_all_keys() && self.allows_all_channels()
    }

    fn allows_all_keys(&self) -> bool {
        self.keys.iter().any(KeyPattern::is_everything)
    }

    fn reads_all_keys(&self) -> bool {
        self.keys
            .iter()
            .any(|keys| keys.pattern == b"*" && keys.access.reads)
    }

    fn allows_all_channels(&self) -> bool {
        self.channels.iter().any(|pattern| pattern == b"*")
    }

    fn add_keys(&mut self, pattern: &[u8], access: Access) -> Result<(), &'static str> {
        let pattern = KeyPattern {
            pattern: pattern.to_vec(),
            access,
        };
        if pattern.is_everything() {
            self.keys = vec![pattern];
        } else if self.allows_all_keys() {
            return Err(
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns",
            );
        } else if !self.keys.contains(&pattern) {
            self.keys.push(pattern);
        }
        Ok(())
    }

    /// Applies one rule; returns what is wrong with it.
    pub(super) fn apply(&mut self, rule: &[u8], knows: Knows) -> Result<(), &'static str> {
        const UNKNOWN: &str = "Unknown command or category name in ACL";
        let text = String::from_utf8_lossy(rule);
        let both = Access {
            reads: true,
            writes: true,
        };
        match text.to_ascii_lowercase().as_str() {
            "allcommands" => self.commands.allow_all(true),
            "nocommands" => self.commands.allow_all(false),
            "allkeys" => {
                self.keys.clear();
                self.add_keys(b"*", both)?;
            }
            "resetkeys" => self.keys.clear(),
            "allchannels" => self.channels = vec![b"*".to_vec()],
            "resetchannels" => self.channels.clear(),
            _ => match rule {
                [b'~', pattern @ ..] => self.add_keys(pattern, both)?,
                [b'%', rest @ ..] => {
                    let at = rest
                        .iter()
                        .position(|byte| *byte == b'~')
                        .ok_or("Syntax error")?;
                    let flags = rest[..at].to_ascii_uppercase();
                    if flags.is_empty() || !flags.iter().all(|flag| b"RW".contains(flag)) {
                        return Err("Syntax error");
                    }
                    let access = Access {
                        reads: flags.contains(&b'R'),
                        writes: flags.contains(&b'W'),
                    };
                    self.add_keys(&rest[at + 1..], access)?;
                }
                [b'&', pattern @ ..] => {
                    if self.allows_all_channels() && pattern != b"*" {
                        return Err(
                            "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try 'resetchannels' to start with an empty list of channels",
                        );
                    }
                    if pattern == b"*" {
                        self.channels.clear();
                    }
                    if !self.channels.iter().any(|known| known == pattern) {
                        self.channels.push(pattern.to_vec());
                    }
                }
                [b'+', ..] => {
                    return self
                        .commands
                        .apply(true, &text[1..], knows)
                        .then_some(())
                        .ok_or(UNKNOWN);
                }
                [b'-', ..] => {
                    return self
                        .commands
                        .apply(false, &text[1..], knows)
                        .then_some(())
                        .ok_or(UNKNOWN);
                }
                _ => return Err("Syntax error"),
            },
        }
        Ok(())
    }

    /// Checks a request.
    pub(super) fn check(
        &self,
        command: &Signature,
        args: &[Bytes],
        keys: &[Bytes],
    ) -> Result<(), Denied> {
        if !self.commands.allows(command, args) {
            return Err(Denied::Command);
        }
        if !self.allows_all_keys() {
            for (number, key) in keys.iter().enumerate() {
                let wanted = access(command, args, number);
                if !self.keys.iter().any(|pattern| pattern.allows(key, wanted)) {
                    return Err(Denied::Key(key.clone()));
                }
            }
            if let Some(pattern) = pattern_of_keys(command, args)
                && !self.reads_all_keys()
            {
                return Err(Denied::Key(pattern.clone()));
            }
        }
        if !self.allows_all_channels() {
            self.check_channels(command, args)?;
        }
        Ok(())
    }

    fn check_channels(&self, command: &Signature, args: &[Bytes]) -> Result<(), Denied> {
        let (channels, is_pattern) = match command.name {
            "subscribe" | "ssubscribe" => (&args[1..], false),
            "publish" | "spublish" => (&args[1..2], false),
            // A pattern may cover more than a rule does, so it has to be a rule itself.
            "psubscribe" => (&args[1..], true),
            _ => return Ok(()),
        };
        for channel in channels {
            let is_allowed = self.channels.iter().any(|pattern| {
                if is_pattern {
                    pattern == channel
                } else {
                    matches(pattern, channel)
                }
            });
            if !is_allowed {
                return Err(Denied::Channel(channel.clone()));
            }
        }
        Ok(())
    }

    pub(super) fn describe_keys(&self) -> String {
        let keys: Vec<_> = self.keys.iter().map(KeyPattern::describe).collect();
        keys.join(" ")
    }

    pub(super) fn describe_channels(&self) -> String {
        let shown = |channel: &Vec<u8>| format!("&{}", String::from_utf8_lossy(channel));
        let channels: Vec<_> = self.channels.iter().map(shown).collect();
        channels.join(" ")
    }

    /// Returns rules that make an equal selector of an empty one.
    pub(super) fn describe(&self) -> String {
        let (keys, channels) = (self.describe_keys(), self.describe_channels());
        let reset = if self.allows_all_channels() {
            ""
        } else {
            "resetchannels"
        };
        let commands = self.commands.describe();
        let parts = [keys.as_str(), reset, &channels, &commands];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(" ")
    }
}
