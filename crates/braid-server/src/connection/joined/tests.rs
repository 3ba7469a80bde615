//! Tests of [`super`].

use std::sync::Arc;

use braid::device::MemoryDevice;

use super::*;
use crate::channels::mailbox;
use crate::command::Run;
use crate::executor::joins;
use crate::keyspace::Keyspace;
use crate::options::ServerOptions;
use crate::server::share;
use crate::shared::{Client, Signal};

fn shared() -> Arc<Shared> {
    let db = Database::builder()
        .background_threads(false)
        .open_on(Arc::new(MemoryDevice::new()))
        .unwrap();
    flushes::begin(&db, Waker::noop());
    let keyspace = Keyspace::open(db).unwrap();
    Arc::new(share(keyspace, ServerOptions::default(), 1).unwrap())
}

/// A connection without a client.
struct Sender {
    shared: Arc<Shared>,
    session: Session,
    slot: Arc<Slot>,
}

impl Sender {
    fn new(shared: &Arc<Shared>) -> Sender {
        let session = Session::new(shared.new_client(), &shared.acl, mailbox(1 << 20).0, 0);
        Sender {
            shared: Arc::clone(shared),
            session,
            slot: Arc::default(),
        }
    }

    /// Leaves requests, one on each line.
    fn leave(&mut self, lines: &str) {
        let requests = lines.lines().map(|line| {
            let words = line
                .split(' ')
                .map(|word| Bytes::copy_from_slice(word.as_bytes()));
            let args: Vec<Bytes> = words.collect();
            (joins(&self.shared, &self.session, &args).expect(line), args)
        });
        let mut requests = requests.collect();
        add(
            &self.shared,
            &mut self.session,
            &self.slot,
            &mut requests,
            0,
        );
        assert!(requests.is_empty());
    }

    fn replies(&self) -> (Vec<Reply>, u64) {
        match self.slot.take() {
            Some(Fate::Done(Done {
                reply: Reply::Several(replies),
                seqno,
                ..
            })) => (replies, seqno.unwrap()),
            Some(Fate::Done(done)) => (vec![done.reply], done.seqno.unwrap()),
            fate => panic!("{fate:?}"),
        }
    }
}

#[test]
fn writes_of_several_connections_are_one_transaction() {
    let shared = shared();
    let (mut first, mut second) = (Sender::new(&shared), Sender::new(&shared));
    first.leave("SET n 5\nINCR n");
    second.leave("INCR n");
    assert!(first.slot.take().is_none() && second.slot.take().is_none());
    run();
    let (replies, seqno) = first.replies();
    assert_eq!(replies, [Reply::OK, Reply::Integer(6)]);
    assert_eq!(second.replies(), (vec![Reply::Integer(7)], seqno));
    assert!(shared.keyspace.db.durable_seqno() < seqno);
    // The first flush makes the replies of both possible.
    gather();
    gather();
    assert!(shared.keyspace.db.durable_seqno() >= seqno);
    end();
    flushes::end();
}

#[test]
fn a_write_that_fails_undoes_none_of_other_connections() {
    let shared = shared();
    let (mut first, mut second) = (Sender::new(&shared), Sender::new(&shared));
    first.leave("SET a 1");
    run();
    first.replies();
    first.leave("APPEND a x\nLPUSH a x");
    second.leave("SET b 2\nINCR b");
    run();
    for (sender, causes, first_word) in [(&first, true, "APPEND"), (&second, false, "SET")] {
        match sender.slot.take() {
            Some(Fate::Returned { requests, is_cause }) => {
                assert_eq!((requests.len(), is_cause), (2, causes));
                assert_eq!(requests[0].1[0], first_word);
            }
            fate => panic!("{fate:?}"),
        }
    }
    second.leave("SETNX b 3\nAPPEND a y");
    run();
    let (replies, _) = second.replies();
    assert_eq!(replies, [Reply::Integer(1), Reply::Integer(2)]);
    end();
    flushes::end();
}

#[test]
fn a_write_that_panics_ends_no_other_connection() {
    let shared = shared();
    let (mut first, mut second) = (Sender::new(&shared), Sender::new(&shared));
    first.leave("SET a 1");
    let incr = vec![Bytes::from_static(b"INCR"), Bytes::from_static(b"n")];
    let broken = Command {
        run: Run::Data(|_, _| panic!("as a defect would")),
        ..*joins(&shared, &second.session, &incr).unwrap()
    };
    let mut requests = vec![(&*Box::leak(Box::new(broken)), incr)];
    add(&shared, &mut second.session, &second.slot, &mut requests, 0);
    run();
    // Each runs its own.
    for sender in [&first, &second] {
        let fate = sender.slot.take();
        assert!(
            matches!(&fate, Some(Fate::Returned { requests, is_cause: false }) if requests.len() == 1),
            "{fate:?}"
        );
    }
    first.leave("INCR n");
    run();
    assert_eq!(first.replies().0, [Reply::Integer(1)]);
    end();
    flushes::end();
}

#[test]
fn writes_do_not_wait_for_long() {
    let shared = shared();
    let mut sender = Sender::new(&shared);
    // A thread that has more to do.
    sender.leave("INCR n");
    executed(OTHERS_MAX - 1);
    assert!(sender.slot.take().is_none());
    executed(1);
    assert_eq!(sender.replies().0, [Reply::Integer(1)]);
    let db = &shared.keyspace.db;
    // A transaction that is long enough, whose flush is requested at once.
    sender.leave(&["INCR n"; REQUESTS_MAX].join("\n"));
    let (replies, seqno) = sender.replies();
    assert_eq!(replies.len(), REQUESTS_MAX);
    assert!(db.durable_seqno() >= seqno);
    // Another database.
    let mut other = Sender::new(&shared);
    other.session.database = 1;
    sender.leave("INCR n");
    other.leave("INCR n");
    let expected = 2 + REQUESTS_MAX as i64;
    assert_eq!(sender.replies().0, [Reply::Integer(expected)]);
    run();
    assert_eq!(other.replies().0, [Reply::Integer(1)]);
    end();
    flushes::end();
}

/// Returns a connection whose client sends what a test puts into its input.
fn connection(shared: &Arc<Shared>) -> Box<Connection> {
    let (mailbox, inbox) = mailbox(1 << 20);
    let session = Session::new(shared.new_client(), &shared.acl, mailbox, 0);
    let client = Client {
        mailbox: session.mailbox.clone(),
        user: Mutex::new(Arc::clone(&session.user)),
        peer: String::new(),
        local: String::new(),
        since: std::time::Instant::now(),
        info: Mutex::default(),
        kill: Signal::default(),
        unblock: tokio::sync::Notify::new(),
        unblock_fails: false.into(),
    };
    Connection::new(Arc::clone(shared), session, inbox, Arc::new(client))
}

#[test]
fn a_request_does_not_overtake_a_joined_write_of_its_client() {
    let shared = shared();
    let mut connection = connection(&shared);
    let mut send = |text: &str| {
        connection.input.extend_from_slice(text.as_bytes());
        assert_eq!(connection.execute_some(), 1);
        connection.collect_replies();
        assert!(connection.output.is_empty(), "nothing is durable");
        connection.has_joined
    };
    assert!(send("SET a 1\r\n"), "the write waits for those of others");
    assert!(!send("GET a\r\n"), "it has run");
    assert!(send("APPEND a 2\r\n"));
    assert!(send("APPEND a 3\r\n"), "the first one has run");
    run();
    assert!(connection.settle());
    gather();
    gather();
    connection.collect_replies();
    let replies = "+OK\r\n$1\r\n1\r\n:2\r\n:3\r\n";
    assert_eq!(connection.output, replies);
    // The reply to a write that is durable is not queued.
    connection.output.clear();
    connection.input.extend_from_slice(b"APPEND a 4\r\n");
    connection.execute_some();
    run();
    gather();
    gather();
    assert!(connection.settle() && connection.pending.is_empty());
    assert_eq!(connection.output, ":4\r\n");
    end();
    flushes::end();
}
