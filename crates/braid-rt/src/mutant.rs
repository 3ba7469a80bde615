//! Deliberate bugs that test the tests.

/// Whether to enable the deliberate bug of this name. Always `false` except in a build with `--cfg
/// braid_mutants`, where the environment variable `BRAID_MUTANT` selects one bug; see
/// `scripts/mutants.sh`.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        cfg!(braid_mutants) && $crate::is_chosen($name)
    };
}

#[doc(hidden)]
pub fn is_chosen(name: &str) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("BRAID_MUTANT").ok());
    CHOSEN.as_deref() == Some(name)
}
