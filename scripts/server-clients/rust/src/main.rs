//! A program with redis-rs: its argument is the address of the server.

use std::collections::HashMap;

use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{TypedCommands, Value};

fn main() -> redis::RedisResult<()> {
    let address = std::env::args().nth(1).expect("an address");
    let client = redis::Client::open(format!("redis://{address}/"))?;
    let mut connection = client.get_connection()?;
    let mut other = client.get_connection()?;

    // Strings and hashes.
    connection.set("rust:book", "Call me Ishmael.")?;
    assert_eq!(connection.get("rust:book")?.as_deref(), Some("Call me Ishmael."));
    assert_eq!(connection.get("rust:missing")?, None);
    assert_eq!(connection.incr("rust:sold", 5)?, 5);
    connection.hset_multiple("rust:emma", &[("author", "Jane Austen"), ("year", "1815")])?;
    let emma: HashMap<String, String> = connection.hgetall("rust:emma")?;
    assert_eq!((emma["author"].as_str(), emma.len()), ("Jane Austen", 2));

    // Sorted sets.
    connection.zadd_multiple("rust:prices", &[(12.5, "emma"), (9.9, "moby")])?;
    assert_eq!(connection.zrange("rust:prices", 0, -1)?, ["moby", "emma"]);

    // A transaction, and one whose watched key changes.
    let mut order = redis::pipe();
    order.atomic().decr("rust:stock", 1).rpush("rust:orders", "emma");
    let done: (i64, i64) = order.query(&mut connection)?;
    assert_eq!(done, (-1, 1));
    let mut attempts = 0;
    let keys = ["rust:stock"];
    let left: (i64,) = redis::transaction(&mut connection, &keys, |connection, pipe| {
        attempts += 1;
        if attempts == 1 {
            other.set("rust:stock", 7)?;
        }
        pipe.decr("rust:stock", 1).query(connection)
    })?;
    assert_eq!((left, attempts), ((6,), 2));

    // Messages.
    let mut subscriber = client.get_connection()?;
    let mut messages = subscriber.as_pubsub();
    messages.subscribe("rust:news")?;
    assert_eq!(connection.publish("rust:news", "sold out")?, 1);
    assert_eq!(messages.get_message()?.get_payload::<String>()?, "sold out");

    // A pop that waits.
    let waiting = std::thread::spawn(move || other.blpop("rust:queue", 60.0));
    connection.rpush("rust:queue", "job")?;
    let popped = waiting.join().expect("the thread ends")?;
    assert_eq!(popped, Some(["rust:queue".to_owned(), "job".to_owned()]));

    // A stream with a group of consumers.
    let id = connection.xadd("rust:events", "*", &[("kind", "order")])?;
    connection.xgroup_create("rust:events", "workers", "0")?;
    let options = StreamReadOptions::default().group("workers", "one");
    let read: Option<StreamReadReply> =
        connection.xread_options(&["rust:events"], &[">"], &options)?;
    let entry = &read.expect("an entry").keys[0].ids[0];
    assert_eq!(entry.map["kind"], Value::BulkString(b"order".to_vec()));
    let id = id.expect("an id");
    assert_eq!(connection.xack("rust:events", "workers", &[id])?, 1);
    Ok(())
}
