// A program with go-redis: `go run . ADDRESS`.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"

	"github.com/redis/go-redis/v9"
)

func expect(what string, got, want any, err error) {
	if err != nil || !reflect.DeepEqual(got, want) {
		fmt.Printf("%s: %#v instead of %#v (%v)\n", what, got, want, err)
		os.Exit(1)
	}
}

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	defer client.Close()

	// Strings and hashes.
	set, err := client.Set(ctx, "go:book", "Call me Ishmael.", 0).Result()
	expect("SET", set, "OK", err)
	book, err := client.Get(ctx, "go:book").Result()
	expect("GET", book, "Call me Ishmael.", err)
	_, err = client.Get(ctx, "go:missing").Result()
	expect("GET of nothing", err, redis.Nil, nil)
	sold, err := client.IncrBy(ctx, "go:sold", 5).Result()
	expect("INCRBY", sold, int64(5), err)
	fields, err := client.HSet(ctx, "go:emma", "author", "Jane Austen", "year", 1815).Result()
	expect("HSET", fields, int64(2), err)
	emma, err := client.HGetAll(ctx, "go:emma").Result()
	expect("HGETALL", emma, map[string]string{"author": "Jane Austen", "year": "1815"}, err)

	// Sorted sets.
	added, err := client.ZAdd(ctx, "go:prices", redis.Z{Score: 12.5, Member: "emma"},
		redis.Z{Score: 9.9, Member: "moby"}).Result()
	expect("ZADD", added, int64(2), err)
	prices, err := client.ZRangeWithScores(ctx, "go:prices", 0, -1).Result()
	expect("ZRANGE", prices, []redis.Z{{Score: 9.9, Member: "moby"}, {Score: 12.5, Member: "emma"}}, err)

	// A transaction, and one whose watched key changes.
	var stock, orders *redis.IntCmd
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		stock = pipe.Decr(ctx, "go:stock")
		orders = pipe.RPush(ctx, "go:orders", "emma")
		return nil
	})
	expect("MULTI", []int64{stock.Val(), orders.Val()}, []int64{-1, 1}, err)
	err = client.Watch(ctx, func(tx *redis.Tx) error {
		changed, err := client.Set(ctx, "go:stock", 7, 0).Result()
		expect("SET", changed, "OK", err)
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Decr(ctx, "go:stock").Err()
		})
		return err
	}, "go:stock")
	expect("WATCH", err, redis.TxFailedErr, nil)

	// Messages.
	subscriber := client.Subscribe(ctx, "go:news")
	defer subscriber.Close()
	_, err = subscriber.Receive(ctx)
	expect("SUBSCRIBE", err, nil, nil)
	receivers, err := client.Publish(ctx, "go:news", "sold out").Result()
	expect("PUBLISH", receivers, int64(1), err)
	message, err := subscriber.ReceiveMessage(ctx)
	expect("message", message.Payload, "sold out", err)

	// A pop that waits.
	popped := make(chan []string)
	go func() {
		job, err := client.BLPop(ctx, 0, "go:queue").Result()
		expect("BLPOP", len(job), 2, err)
		popped <- job
	}()
	pushed, err := client.RPush(ctx, "go:queue", "job").Result()
	expect("RPUSH", pushed, int64(1), err)
	expect("BLPOP", <-popped, []string{"go:queue", "job"}, nil)

	// A stream with a group of consumers.
	id, err := client.XAdd(ctx, &redis.XAddArgs{Stream: "go:events", Values: []string{"kind", "order"}}).Result()
	expect("XADD", id != "", true, err)
	expect("XGROUP", client.XGroupCreate(ctx, "go:events", "workers", "0").Err(), nil, nil)
	read, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: "workers", Consumer: "one", Streams: []string{"go:events", ">"},
	}).Result()
	expect("XREADGROUP", len(read), 1, err)
	expect("entry", read[0].Messages[0].Values, map[string]any{"kind": "order"}, nil)
	acknowledged, err := client.XAck(ctx, "go:events", "workers", id).Result()
	expect("XACK", acknowledged, int64(1), err)
}
