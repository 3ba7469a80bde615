import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.params.XReadGroupParams;

/** A program with Jedis: its arguments are the host and the port. */
public class Client {
    static void expect(String what, Object got, Object want) {
        if (!Objects.equals(got, want)) {
            throw new AssertionError(what + ": " + got + " instead of " + want);
        }
    }

    public static void main(String[] args) throws Exception {
        String host = args[0];
        int port = Integer.parseInt(args[1]);
        try (Jedis client = new Jedis(host, port); Jedis other = new Jedis(host, port)) {
            // Strings and hashes.
            expect("SET", client.set("java:book", "Call me Ishmael."), "OK");
            expect("GET", client.get("java:book"), "Call me Ishmael.");
            expect("GET of nothing", client.get("java:missing"), null);
            expect("INCRBY", client.incrBy("java:sold", 5), 5L);
            Map<String, String> emma = Map.of("author", "Jane Austen", "year", "1815");
            expect("HSET", client.hset("java:emma", emma), 2L);
            expect("HGETALL", client.hgetAll("java:emma"), emma);

            // Sorted sets.
            expect("ZADD", client.zadd("java:prices", Map.of("emma", 12.5, "moby", 9.9)), 2L);
            expect("ZRANGE", client.zrange("java:prices", 0, -1), List.of("moby", "emma"));

            // A transaction, and one whose watched key changes.
            Transaction order = client.multi();
            order.decr("java:stock");
            order.rpush("java:orders", "emma");
            expect("EXEC", order.exec(), List.of(-1L, 1L));
            client.watch("java:stock");
            other.set("java:stock", "7");
            Transaction late = client.multi();
            late.decr("java:stock");
            expect("EXEC after a change", late.exec(), null);
            expect("GET", client.get("java:stock"), "7");

            // Messages.
            CompletableFuture<String> message = new CompletableFuture<>();
            CountDownLatch subscribed = new CountDownLatch(1);
            Thread reader = new Thread(() -> {
                try (Jedis subscriber = new Jedis(host, port)) {
                    subscriber.subscribe(new JedisPubSub() {
                        @Override
                        public void onSubscribe(String channel, int count) {
                            subscribed.countDown();
                        }

                        @Override
                        public void onMessage(String channel, String text) {
                            message.complete(text);
                            unsubscribe();
                        }
                    }, "java:news");
                }
            });
            reader.start();
            subscribed.await();
            expect("PUBLISH", client.publish("java:news", "sold out"), 1L);
            expect("message", message.get(), "sold out");
            reader.join();

            // A pop that waits.
            CompletableFuture<List<String>> popped =
                CompletableFuture.supplyAsync(() -> other.blpop(60, "java:queue"));
            client.rpush("java:queue", "job");
            expect("BLPOP", popped.get(), List.of("java:queue", "job"));

            // A stream with a group of consumers.
            Map<String, String> event = Map.of("kind", "order", "book", "emma");
            StreamEntryID id = client.xadd("java:events", StreamEntryID.NEW_ENTRY, event);
            client.xgroupCreate("java:events", "workers", new StreamEntryID(0, 0), false);
            var read = client.xreadGroup("workers", "one", XReadGroupParams.xReadGroupParams(),
                Map.of("java:events", StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY));
            expect("XREADGROUP", read.get(0).getValue().get(0).getFields(), event);
            expect("XACK", client.xack("java:events", "workers", id), 1L);
        }
    }
}
