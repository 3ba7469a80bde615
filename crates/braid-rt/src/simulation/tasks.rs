//! The tasks of a simulation and their states.

use generator::Generator;

pub(super) type Stack = Generator<'static, (), ()>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// Runs again after other tasks have run.
    GaveWay,
    Blocked {
        key: usize,
        deadline: Option<u64>,
    },
    Done,
}

pub(super) struct Task {
    pub(super) name: String,
    state: State,
    /// Whether another task ended the last sleep.
    pub(super) woken: bool,
    pub(super) priority: u64,
    pub(super) stack: Option<Stack>,
}

/// All tasks, by number. Few of many tasks can run, and the scheduler asks for these at every step,
/// so each state has its own list.
#[derive(Default)]
pub(super) struct Tasks {
    all: Vec<Task>,
    /// Sorted by number, like the next two lists.
    ready: Vec<usize>,
    behind: Vec<usize>,
    asleep: Vec<usize>,
    /// No sleep times out before this time.
    earliest: u64,
}

fn insert(list: &mut Vec<usize>, task: usize) {
    let at = list.partition_point(|&other| other < task);
    list.insert(at, task);
}

impl Tasks {
    /// Adds a task that is ready to run.
    pub(super) fn add(&mut self, name: &str, priority: u64, stack: Stack) {
        self.ready.push(self.all.len());
        self.all.push(Task {
            name: name.to_owned(),
            state: State::Ready,
            woken: false,
            priority,
            stack: Some(stack),
        });
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&mut self, task: usize) -> &mut Task {
        &mut self.all[task]
    }

    pub(super) fn state(&self, task: usize) -> State {
        self.all[task].state
    }

    /// The tasks that can run.
    pub(super) fn ready(&self) -> &[usize] {
        &self.ready
    }

    /// The ready task with the highest priority.
    ///
    /// # Panics
    /// If no task is ready.
    pub(super) fn greatest(&self) -> usize {
        let ready = self.ready.iter().copied();
        ready
            .max_by_key(|&i| self.all[i].priority)
            .expect("one is ready")
    }

    fn list(&mut self, state: State) -> Option<&mut Vec<usize>> {
        match state {
            State::Ready => Some(&mut self.ready),
            State::GaveWay => Some(&mut self.behind),
            State::Blocked { .. } => Some(&mut self.asleep),
            State::Done => None,
        }
    }

    pub(super) fn set(&mut self, task: usize, state: State) {
        let before = std::mem::replace(&mut self.all[task].state, state);
        if before == state {
            return;
        }
        if let Some(list) = self.list(before) {
            list.retain(|&other| other != task);
        }
        if let Some(list) = self.list(state) {
            insert(list, task);
        }
        if let State::Blocked {
            deadline: Some(at), ..
        } = state
        {
            self.earliest = self.earliest.min(at);
        }
    }

    /// Wakes a task.
    pub(super) fn wake(&mut self, task: usize) {
        self.set(task, State::Ready);
        self.all[task].woken = true;
    }

    /// The tasks that sleep on `key`.
    pub(super) fn sleepers(&self, key: usize) -> Vec<usize> {
        let sleeps =
            |&&i: &&usize| matches!(self.all[i].state, State::Blocked { key: k, .. } if k == key);
        self.asleep.iter().filter(sleeps).copied().collect()
    }

    /// Makes tasks that gave way ready again.
    pub(super) fn come_back(&mut self) {
        while let Some(task) = self.behind.pop() {
            self.all[task].state = State::Ready;
            insert(&mut self.ready, task);
        }
    }

    /// Ends the sleeps whose deadline has passed.
    pub(super) fn fire(&mut self, now: u64) {
        if now < self.earliest {
            return;
        }
        let Self { all, asleep, .. } = self;
        let mut over = Vec::new();
        asleep.retain(|&i| {
            let is_over =
                matches!(all[i].state, State::Blocked { deadline: Some(at), .. } if at <= now);
            if is_over {
                over.push(i);
            }
            !is_over
        });
        for task in over {
            self.all[task].state = State::Ready;
            self.all[task].woken = false;
            insert(&mut self.ready, task);
        }
        self.earliest = self.next_deadline().unwrap_or(u64::MAX);
    }

    /// The earliest deadline of a sleeping task.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let deadline = |&i: &usize| match self.all[i].state {
            State::Blocked { deadline, .. } => deadline,
            _ => None,
        };
        self.asleep.iter().filter_map(deadline).min()
    }

    /// The tasks that have not ended.
    pub(super) fn unfinished(&self) -> Vec<usize> {
        let tasks = 0..self.all.len();
        tasks
            .filter(|&i| self.all[i].state != State::Done)
            .collect()
    }
}
