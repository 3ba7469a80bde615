//! Access control: users, and what each may do.
//!
//! The rules are those of Redis 7.2. A connection has a user; the user has selectors; a request is
//! allowed if one selector allows the command, all its keys and all its channels. Rules that change
//! apply to open connections from their next request on.

mod access;
mod categories;
mod commands;
mod log;
mod rules;
mod selector;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use crate::signature::{Flag, Signature};

pub(crate) use categories::{CATEGORIES, belongs, categories};
pub(crate) use commands::Knows;
pub(crate) use log::{Log, Reason};
pub(crate) use rules::Rules;

/// Name of the user that a connection has before it authenticates.
pub(crate) const DEFAULT: &str = "default";

/// Why a request is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    Command,
    Key(Bytes),
    Channel(Bytes),
}

impl Denied {
    /// Returns the text for a client, without a code.
    pub(crate) fn describe(&self, user: &str, command: &str) -> String {
        match self {
            Denied::Command => {
                format!("User {user} has no permissions to run the '{command}' command")
            }
            Denied::Key(_) => "No permissions to access a key".to_owned(),
            Denied::Channel(_) => "No permissions to access a channel".to_owned(),
        }
    }
}

/// A user, as its connections share it.
#[derive(Debug)]
pub(crate) struct User {
    name: String,
    rules: RwLock<Rules>,
    /// Whether the user may do everything, which needs no look at the rules.
    may_do_everything: AtomicBool,
}

impl User {
    fn new(name: String, rules: Rules) -> User {
        User {
            name,
            may_do_everything: rules.allow_everything().into(),
            rules: RwLock::new(rules),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a copy of the rules.
    pub(crate) fn rules(&self) -> Rules {
        self.rules
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, rules: Rules) {
        let mut current = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: a request that another connection sends at the same time may run before or after.
        self.may_do_everything
            .store(rules.allow_everything(), Ordering::Relaxed);
        *current = rules;
    }

    /// Checks a request; `keys` finds its keys.
    pub(crate) fn check(
        &self,
        command: &Signature,
        args: &[Bytes],
        keys: impl FnOnce() -> Vec<Bytes>,
    ) -> Result<(), Denied> {
        if self.may_do_everything.load(Ordering::Relaxed) || command.is(Flag::NoAuth) {
            return Ok(());
        }
        self.rules
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .check(command, args, &keys())
    }
}

/// The line of a file or of the configuration that is wrong, and why.
#[derive(Debug, thiserror::Error)]
#[error("user {user}: {reason}")]
pub(crate) struct RuleError {
    user: String,
    reason: String,
}

/// All users.
#[derive(Debug)]
pub(crate) struct Acl {
    users: RwLock<BTreeMap<String, Arc<User>>>,
    knows: Knows,
    pub(crate) log: Log,
}

impl Acl {
    /// Makes the user `default`, who may do everything, with a password if there is one. `knows` says
    /// which commands there are.
    pub(crate) fn new(password: Option<&str>, knows: Knows) -> Acl {
        let mut rules = Rules::everything();
        rules.set_password(password);
        let user = Arc::new(User::new(DEFAULT.to_owned(), rules));
        Acl {
            users: RwLock::new(BTreeMap::from([(DEFAULT.to_owned(), user)])),
            knows,
            log: Log::default(),
        }
    }

    pub(crate) fn user(&self, name: &[u8]) -> Option<Arc<User>> {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        users.get(std::str::from_utf8(name).ok()?).cloned()
    }

    /// Returns all users in the order of their names.
    pub(crate) fn users(&self) -> Vec<Arc<User>> {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        users.values().cloned().collect()
    }

    /// Returns the user `default`, and whether a connection is that user without a password.
    pub(crate) fn default_user(&self) -> (Arc<User>, bool) {
        // Nobody can remove the user.
        let user = self
            .user(DEFAULT.as_bytes())
            .unwrap_or_else(|| Arc::new(User::new(DEFAULT.to_owned(), Rules::default())));
        let rules = user.rules();
        (user, rules.is_on && rules.takes_any_password)
    }

    /// Returns the user if the password is right and the user is on.
    pub(crate) fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let user = self.user(name)?;
        user.rules().accept(password).then_some(user)
    }

    /// Changes a user by rules, or makes it; all rules or none take effect.
    pub(crate) fn set(&self, name: &str, rules: &[Bytes]) -> Result<(), String> {
        let mut users = self.users.write().unwrap_or_else(PoisonError::into_inner);
        let existing = users.get(name);
        let mut changed = existing.map_or_else(Rules::default, |user| user.rules());
        changed.apply_all(rules, self.knows)?;
        match existing {
            Some(user) => user.set(changed),
            None => {
                let user = Arc::new(User::new(name.to_owned(), changed));
                users.insert(name.to_owned(), user);
            }
        }
        Ok(())
    }

    /// Sets the only password of the user `default`, as `requirepass` does.
    pub(crate) fn set_default_password(&self, password: Option<&str>) {
        let (user, _) = self.default_user();
        let mut rules = user.rules();
        rules.set_password(password);
        user.set(rules);
    }

    /// Removes a user; returns it if there was one.
    pub(crate) fn remove(&self, name: &[u8]) -> Option<Arc<User>> {
        let mut users = self.users.write().unwrap_or_else(PoisonError::into_inner);
        users.remove(std::str::from_utf8(name).ok()?)
    }

    /// Returns a line per user, from which `replace` makes the same users.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.users()
            .iter()
            .map(|user| format!("user {} {}", user.name(), user.rules().describe()))
            .collect()
    }

    /// Replaces all users by those of the lines `user NAME RULE...`; none if one is wrong. Users who
    /// stay keep their connections. Returns the users that are gone.
    pub(crate) fn replace(&self, text: &str) -> Result<Vec<Arc<User>>, RuleError> {
        let mut wanted: BTreeMap<String, Rules> = BTreeMap::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let (is_user, name) = (words.next() == Some("user"), words.next());
            let name = name.filter(|_| is_user).ok_or_else(|| RuleError {
                user: line.chars().take(64).collect(),
                reason: "a line has the form `user NAME RULE...`".to_owned(),
            })?;
            let rules: Vec<Bytes> = words
                .map(|word| Bytes::copy_from_slice(word.as_bytes()))
                .collect();
            let wrong = |reason| RuleError {
                user: name.to_owned(),
                reason,
            };
            let mut parsed = Rules::default();
            parsed.apply_all(&rules, self.knows).map_err(wrong)?;
            if wanted.insert(name.to_owned(), parsed).is_some() {
                return Err(wrong("the user appears twice".to_owned()));
            }
        }
        wanted
            .entry(DEFAULT.to_owned())
            .or_insert_with(Rules::everything);
        let mut users = self.users.write().unwrap_or_else(PoisonError::into_inner);
        let mut removed = Vec::new();
        users.retain(|name, user| {
            let stays = wanted.contains_key(name);
            if !stays {
                removed.push(Arc::clone(user));
            }
            stays
        });
        for (name, rules) in wanted {
            match users.get(&name) {
                Some(user) => user.set(rules),
                None => {
                    users.insert(name.clone(), Arc::new(User::new(name, rules)));
                }
            }
        }
        Ok(removed)
    }

    /// Reads the users of a file.
    ///
    /// # Errors
    /// A text that names the file.
    pub(crate) fn load(&self, path: &Path) -> Result<Vec<Arc<User>>, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        self.replace(&text)
            .map_err(|error| format!("{}: {error}; no user was changed", path.display()))
    }

    /// Writes the users to a file, which a crash leaves as it was or as it is to be.
    ///
    /// # Errors
    /// A text that names the file.
    pub(crate) fn save(&self, path: &Path) -> Result<(), String> {
        let mut text = self.lines().join("\n");
        text.push('\n');
        replace_file(path, text.as_bytes())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

/// Writes a file next to its place, syncs it, and renames it.
fn replace_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let temporary = path.with_extension("tmp");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    // Hashes of passwords are in it.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    #[cfg(unix)]
    if let Some(parent) = path.parent() {
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}
