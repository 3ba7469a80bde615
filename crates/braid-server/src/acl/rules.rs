//! The rules of one user.

use std::fmt::Write;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::Denied;
use super::commands::Knows;
use super::selector::Selector;
use crate::signature::Signature;

/// Digest of a password.
type PasswordHash = [u8; 32];

/// The rules of one user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) is_on: bool,
    pub(crate) takes_any_password: bool,
    passwords: Vec<PasswordHash>,
    root: Selector,
    selectors: Vec<Selector>,
}

fn hash(password: &[u8]) -> PasswordHash {
    Sha256::digest(password).into()
}

/// Compares without saying by its duration where the texts differ.
fn equal(a: &PasswordHash, b: &PasswordHash) -> bool {
    a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

fn hex(hash: &PasswordHash) -> String {
    hash.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn from_hex(text: &[u8]) -> Option<PasswordHash> {
    let mut hash = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(text.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        let is_lower_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        if !pair.chars().all(is_lower_hex) {
            return None;
        }
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(hash)
}

impl Rules {
    /// On, with any password, and everything allowed.
    pub(crate) fn everything() -> Rules {
        Rules {
            is_on: true,
            takes_any_password: true,
            root: Selector::everything(),
            ..Rules::default()
        }
    }

    pub(super) fn allow_everything(&self) -> bool {
        self.root.allows_everything()
    }

    /// Sets the only password; with `None`, any is right.
    pub(super) fn set_password(&mut self, password: Option<&str>) {
        self.takes_any_password = password.is_none();
        self.passwords = password
            .map(|text| hash(text.as_bytes()))
            .into_iter()
            .collect();
    }

    /// Returns whether a client with this password may be the user.
    pub(super) fn accept(&self, password: &[u8]) -> bool {
        let given = hash(password);
        // Looks at all, for the duration says nothing then.
        let known = self
            .passwords
            .iter()
            .filter(|known| equal(known, &given))
            .count()
            > 0;
        self.is_on && (self.takes_any_password || known)
    }

    /// Checks a request; the denial that came closest to being allowed explains best.
    pub(super) fn check(
        &self,
        command: &Signature,
        args: &[Bytes],
        keys: &[Bytes],
    ) -> Result<(), Denied> {
        let rank = |denied: &Denied| match denied {
            Denied::Command => 0,
            Denied::Key(_) => 1,
            Denied::Channel(_) => 2,
        };
        let mut closest = Denied::Command;
        for selector in std::iter::once(&self.root).chain(&self.selectors) {
            match selector.check(command, args, keys) {
                Ok(()) => return Ok(()),
                Err(denied) if rank(&denied) > rank(&closest) => closest = denied,
                Err(_) => {}
            }
        }
        Err(closest)
    }

    /// Applies rules; returns what is wrong with the first bad one. A selector in parentheses may
    /// be spread over several words.
    pub(super) fn apply_all(&mut self, rules: &[Bytes], knows: Knows) -> Result<(), String> {
        let mut rules = rules.iter();
        while let Some(rule) = rules.next() {
            let wrong = |reason: &str, rule: &[u8]| {
                let shown = String::from_utf8_lossy(&rule[..rule.len().min(128)]).into_owned();
                format!("Error in ACL SETUSER modifier '{shown}': {reason}")
            };
            if rule.first() != Some(&b'(') {
                self.apply(rule, knows)
                    .map_err(|reason| wrong(reason, rule))?;
                continue;
            }
            let mut whole = rule.to_vec();
            while !whole.ends_with(b")") {
                let next = rules.next().ok_or_else(|| {
                    "Unmatched parenthesis in acl selector starting at '".to_owned()
                        + &String::from_utf8_lossy(rule)
                        + "'."
                })?;
                whole.push(b' ');
                whole.extend_from_slice(next);
            }
            let mut selector = Selector::default();
            let inner = &whole[1..whole.len() - 1];
            for word in inner
                .split(|byte| *byte == b' ')
                .filter(|word| !word.is_empty())
            {
                // In the description of the selector, which ACL SAVE writes, it would be the end.
                if word.ends_with(b")") {
                    let reason = "a word of a selector cannot end with a parenthesis";
                    return Err(wrong(reason, &whole));
                }
                selector
                    .apply(word, knows)
                    .map_err(|reason| wrong(reason, &whole))?;
            }
            self.selectors.push(selector);
        }
        Ok(())
    }

    fn apply(&mut self, rule: &[u8], knows: Knows) -> Result<(), &'static str> {
        let lower = rule.to_ascii_lowercase();
        match lower.as_slice() {
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"nopass" => {
                self.takes_any_password = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.takes_any_password = false;
                self.passwords.clear();
            }
            // Every payload of RESTORE is checked.
            b"sanitize-payload" | b"skip-sanitize-payload" => {}
            b"clearselectors" => self.selectors.clear(),
            b"reset" => *self = Rules::default(),
            _ => match rule {
                [b'>', password @ ..] => self.add_password(hash(password)),
                [b'#', text @ ..] => {
                    let hash = from_hex(text).ok_or("The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters")?;
                    self.add_password(hash);
                }
                [b'<', password @ ..] => self.remove_password(&hash(password))?,
                [b'!', text @ ..] => {
                    let hash = from_hex(text).ok_or("The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters")?;
                    self.remove_password(&hash)?;
                }
                _ => self.root.apply(rule, knows)?,
            },
        }
        Ok(())
    }

    fn add_password(&mut self, hash: PasswordHash) {
        self.takes_any_password = false;
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
    }

    fn remove_password(&mut self, hash: &PasswordHash) -> Result<(), &'static str> {
        let at = self.passwords.iter().position(|known| known == hash);
        let at = at.ok_or("The password you are trying to remove from the user does not exist")?;
        self.passwords.remove(at);
        Ok(())
    }

    /// Returns the words of ACL GETUSER's `flags`.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        if self.takes_any_password {
            flags.push("nopass");
        }
        flags.push("sanitize-payload");
        flags
    }

    /// Returns the digests of the passwords.
    pub(crate) fn password_hashes(&self) -> Vec<String> {
        self.passwords.iter().map(hex).collect()
    }

    /// Returns commands, keys and channels of the root and of each further selector.
    pub(crate) fn describe_selectors(&self) -> Vec<[String; 3]> {
        std::iter::once(&self.root)
            .chain(&self.selectors)
            .map(|selector| {
                [
                    selector.commands.describe(),
                    selector.describe_keys(),
                    selector.describe_channels(),
                ]
            })
            .collect()
    }

    /// Returns rules that make equal rules of none.
    pub(crate) fn describe(&self) -> String {
        let mut words: Vec<String> = self.flags().into_iter().map(str::to_owned).collect();
        words.extend(self.passwords.iter().map(|hash| format!("#{}", hex(hash))));
        words.push(self.root.describe());
        words.extend(
            self.selectors
                .iter()
                .map(|selector| format!("({})", selector.describe())),
        );
        words.join(" ")
    }
}
