//! Streams as DUMP and RESTORE carry them.

use std::collections::BTreeMap;

use super::groups::{Group, OpenGroup, Pending, groups};
use super::id::Id;
use super::{Stream, StreamHead};
use crate::failure::Result;
use crate::keyspace::{Collection, Data, Kind};
use crate::rdb::{ConsumerValue, GroupValue, PendingValue, StreamValue};

/// Returns everything that belongs to a stream.
pub(in crate::command) fn export(data: &mut Data, head: &Collection) -> Result<StreamValue> {
    let stream = Stream {
        data,
        key: &[],
        old: None,
        head: *head,
    };
    let items = stream.entries(Id::MIN, Id::MAX, usize::MAX, false)?;
    let mut exported = Vec::new();
    for group in groups(&stream)? {
        let mut consumers: BTreeMap<_, ConsumerValue> = BTreeMap::new();
        for consumer in group.consumers(&stream)? {
            let value = ConsumerValue {
                name: consumer.name.clone(),
                seen: consumer.seen,
                active: consumer.active,
                pending: Vec::new(),
            };
            consumers.insert(consumer.name, value);
        }
        for (id, pending) in group.pending_range(&stream, Id::MIN, Id::MAX, usize::MAX)? {
            let owner = consumers.entry(pending.consumer.clone()).or_default();
            owner.name = pending.consumer;
            owner.pending.push(PendingValue {
                id: id.0,
                time: pending.time,
                count: pending.count,
            });
        }
        exported.push(GroupValue {
            name: group.group.name.clone(),
            last: group.group.last.0,
            read: group.group.read,
            consumers: consumers.into_values().collect(),
        });
    }
    Ok(StreamValue {
        entries: items
            .into_iter()
            .map(|(id, fields)| (id.0, fields))
            .collect(),
        last: head.stream.last,
        deleted: head.stream.deleted,
        added: head.stream.added,
        groups: exported,
    })
}

/// Builds a stream that no key has yet.
pub(in crate::command) fn import(data: &mut Data, value: &StreamValue) -> Result<Collection> {
    let head = data.new_collection(Kind::Stream);
    let mut stream = Stream {
        data,
        key: &[],
        old: None,
        head,
    };
    for (id, fields) in &value.entries {
        stream.add(Id(*id), fields)?;
    }
    stream.head.stream = StreamHead {
        last: value.last,
        deleted: value.deleted,
        added: value.added,
    };
    for from in &value.groups {
        let mut group = OpenGroup::new(Group {
            name: from.name.clone(),
            number: stream.data.keyspace.new_identity(),
            last: Id(from.last),
            read: from.read,
            pending: 0,
        });
        for consumer in &from.consumers {
            group.add_consumer(&stream, consumer);
            for entry in &consumer.pending {
                let pending = Pending {
                    time: entry.time,
                    count: entry.count,
                    consumer: consumer.name.clone(),
                };
                group.assign(&mut stream, Id(entry.id), None, &pending)?;
            }
        }
        stream.head.extra += 1;
        group.store(&mut stream)?;
    }
    Ok(stream.head)
}
