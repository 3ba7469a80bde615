// A program with node-redis: `node client.mjs HOST PORT`.
import assert from 'node:assert/strict';
import { createClient, WatchError } from 'redis';

const [host, port] = process.argv.slice(2);
const connect = () => createClient({ url: `redis://${host}:${port}` }).connect();
const client = await connect();

// Strings and hashes.
await client.set('node:book', 'Call me Ishmael.');
assert.equal(await client.get('node:book'), 'Call me Ishmael.');
assert.equal(await client.get('node:missing'), null);
assert.equal(await client.set('node:book', 'x', { NX: true }), null);
assert.equal(await client.incrBy('node:sold', 5), 5);
await client.hSet('node:emma', { author: 'Jane Austen', year: '1815' });
assert.deepEqual({ ...(await client.hGetAll('node:emma')) }, { author: 'Jane Austen', year: '1815' });

// Sorted sets.
await client.zAdd('node:prices', [{ score: 12.5, value: 'emma' }, { score: 9.9, value: 'moby' }]);
assert.deepEqual(await client.zRange('node:prices', 0, -1), ['moby', 'emma']);

// A transaction, and one whose watched key changes.
const [stock, orders] = await client.multi().decr('node:stock').rPush('node:orders', 'emma').exec();
assert.deepEqual([stock, orders], [-1, 1]);
const other = await connect();
await client.watch('node:stock');
await other.set('node:stock', '7');
await assert.rejects(client.multi().decr('node:stock').exec(), WatchError);
assert.equal(await client.get('node:stock'), '7');

// Messages.
const subscriber = await connect();
const message = new Promise(resolve => subscriber.subscribe('node:news', resolve).then(
  () => client.publish('node:news', 'sold out')));
assert.equal(await message, 'sold out');
await subscriber.unsubscribe('node:news');

// A pop that waits.
const waiting = other.blPop('node:queue', 60);
await client.rPush('node:queue', 'job');
assert.deepEqual({ ...(await waiting) }, { key: 'node:queue', element: 'job' });

// A stream with a group of consumers.
const id = await client.xAdd('node:events', '*', { kind: 'order', book: 'emma' });
await client.xGroupCreate('node:events', 'workers', '0');
const read = await other.xReadGroup('workers', 'one', { key: 'node:events', id: '>' });
assert.deepEqual({ ...read[0].messages[0].message }, { kind: 'order', book: 'emma' });
assert.equal(await other.xAck('node:events', 'workers', id), 1);

// Caches in the client: the server tells what has changed.
const cached = createClient({
  url: `redis://${host}:${port}`,
  RESP: 3,
  clientSideCache: { ttl: 0, maxEntries: 100, evictPolicy: 'LRU' },
});
await cached.connect();
assert.equal(await cached.get('node:book'), 'Call me Ishmael.');
await client.set('node:book', 'Loomings');
while ((await cached.get('node:book')) !== 'Loomings') {
  // Lets the message arrive.
  await new Promise(setImmediate);
}

for (const one of [client, other, subscriber, cached]) await one.close();
