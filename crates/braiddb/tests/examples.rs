//! Runs the examples to their end; each checks its own result.

#[path = "../examples/async_commits.rs"]
mod async_commits;
#[path = "../examples/bank.rs"]
mod bank;
#[path = "../examples/key_value.rs"]
mod key_value;
#[path = "../examples/queue.rs"]
mod queue;
#[path = "../examples/secondary_index.rs"]
mod secondary_index;
#[path = "../examples/time_series.rs"]
mod time_series;

macro_rules! examples_run {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            self::$name::main().unwrap();
        }
    )*};
}

examples_run!(
    async_commits,
    bank,
    key_value,
    queue,
    secondary_index,
    time_series
);
