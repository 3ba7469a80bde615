// Records what several clients of a server ask and are answered, while the server is killed again
// and again, and checks that the history is strictly serializable: `go run . BRAID DIR ROUNDS`.
package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
)

const (
	registers = 3
	clients   = 4
	// Answers between two kills.
	answers = 120
	// No answer may take so long, however slow the disk is: the server hangs.
	patience = 2 * time.Minute
)

type kind int

const (
	get kind = iota
	set
	// Sets a register if it has the expected value, by WATCH and MULTI.
	cas
	// Reads all registers in a transaction.
	getAll
	// Sets all registers in a transaction.
	setAll
)

type input struct {
	kind     kind
	register int
	expected string
	value    string
}

type output struct {
	// Whether the request was answered.
	known bool
	// Whether a cas has set the register.
	done   bool
	values [registers]string
}

// One state of all registers; every request changes it or not, in one step.
var model = porcupine.Model{
	Init: func() any { return [registers]string{} },
	Step: func(state, in, out any) (bool, any) {
		before, i, o := state.([registers]string), in.(input), out.(output)
		after := before
		switch i.kind {
		case get:
			return o.values[i.register] == before[i.register], before
		case getAll:
			return o.values == before, before
		case set:
			after[i.register] = i.value
		case setAll:
			for at := range after {
				after[at] = i.value
			}
		case cas:
			matches := before[i.register] == i.expected
			if matches {
				after[i.register] = i.value
			}
			// Of a request without an answer nothing is known.
			if o.known && o.done != matches {
				return false, before
			}
		}
		return true, after
	},
}

func name(register int) string { return "register" + strconv.Itoa(register) }

// Runs one request. The error means that there was no answer; `counts` whether the request had any
// effect that the history has to explain.
func request(ctx context.Context, client *redis.Client, in input) (out output, counts bool, err error) {
	value := func(reply *redis.StringCmd) string {
		text, failure := reply.Result()
		if failure != nil && failure != redis.Nil {
			err = failure
		}
		return text
	}
	out.known = true
	switch in.kind {
	case get:
		out.values[in.register] = value(client.Get(ctx, name(in.register)))
	case set:
		err = client.Set(ctx, name(in.register), in.value, 0).Err()
	case getAll:
		var replies [registers]*redis.StringCmd
		_, failure := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			for at := range replies {
				replies[at] = pipe.Get(ctx, name(at))
			}
			return nil
		})
		if failure != nil && failure != redis.Nil {
			return out, false, failure
		}
		for at, reply := range replies {
			out.values[at] = value(reply)
		}
	case setAll:
		_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			for at := 0; at < registers; at++ {
				pipe.Set(ctx, name(at), in.value, 0)
			}
			return nil
		})
	case cas:
		err = client.Watch(ctx, func(tx *redis.Tx) error {
			if value(tx.Get(ctx, name(in.register))) != in.expected || err != nil {
				return err
			}
			_, failure := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, name(in.register), in.value, 0)
				return nil
			})
			out.done = failure == nil
			return failure
		}, name(in.register))
		if err == redis.TxFailedErr {
			// Somebody else was faster: nothing has happened, whatever the register had.
			return out, false, nil
		}
	}
	isRead := in.kind == get || in.kind == getAll
	return out, err == nil || !isRead, err
}

func start(braid, dir string) (*exec.Cmd, string) {
	server := exec.Command(braid, "serve", dir, "--port", "0", "--threads", "2", "--pool", "32")
	server.Stderr = os.Stderr
	pipe, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		panic(err)
	}
	line, err := bufio.NewReader(pipe).ReadString('\n')
	if err != nil {
		panic(err)
	}
	words := strings.Fields(line)
	return server, words[len(words)-1]
}

func main() {
	ctx := context.Background()
	rounds, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	began := time.Now()
	now := func() int64 { return int64(time.Since(began)) }
	var history []porcupine.Operation
	var lock sync.Mutex
	var values atomic.Int64
	for round := 0; round < rounds; round++ {
		server, address := start(os.Args[1], os.Args[2])
		answered := make(chan struct{}, 1<<16)
		failed := make(chan error, clients)
		var working sync.WaitGroup
		for number := 0; number < clients; number++ {
			working.Add(1)
			go func() {
				defer working.Done()
				random := rand.New(rand.NewSource(int64(round*clients + number)))
				// A request that is sent again would have two effects.
				client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, PoolSize: 1,
					DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience})
				defer client.Close()
				var seen [registers]string
				for {
					in := input{kind: kind(random.Intn(5)), register: random.Intn(registers)}
					in.value = strconv.FormatInt(values.Add(1), 10)
					in.expected = seen[in.register]
					call := now()
					out, counts, err := request(ctx, client, in)
					back := now()
					if err != nil {
						out, back = output{}, 1<<62
					}
					if counts {
						lock.Lock()
						history = append(history, porcupine.Operation{
							ClientId: number, Input: in, Call: call, Output: out, Return: back})
						lock.Unlock()
					}
					if err != nil {
						failed <- err
						return
					}
					switch {
					case in.kind == get:
						seen[in.register] = out.values[in.register]
					case in.kind == getAll:
						seen = out.values
					case in.kind == set, in.kind == cas && out.done:
						seen[in.register] = in.value
					case in.kind == setAll:
						for at := range seen {
							seen[at] = in.value
						}
					}
					answered <- struct{}{}
				}
			}()
		}
		for count := 0; count < answers; count++ {
			select {
			case <-answered:
			case err := <-failed:
				fmt.Printf("round %d: a request failed after %d answers of a server that runs: %v\n", round, count, err)
				_ = server.Process.Signal(syscall.SIGABRT)
				os.Exit(1)
			}
		}
		if err := server.Process.Kill(); err != nil {
			panic(err)
		}
		working.Wait()
		_ = server.Wait()
	}
	// Clients of different rounds are different ones: one that got no answer is still waiting.
	for at := range history {
		history[at].ClientId = at
	}
	kinds := map[kind]int{}
	for _, operation := range history {
		if operation.Output.(output).known && (operation.Input.(input).kind != cas || operation.Output.(output).done) {
			kinds[operation.Input.(input).kind]++
		}
	}
	for _, one := range []kind{get, set, cas, getAll, setAll} {
		if kinds[one] == 0 {
			fmt.Printf("no request of kind %d was answered with success\n", one)
			os.Exit(1)
		}
	}
	if result := porcupine.CheckOperationsTimeout(model, history, 2*time.Minute); result != porcupine.Ok {
		fmt.Printf("%d operations are not strictly serializable: %v\n", len(history), result)
		os.Exit(1)
	}
	// The check notices a wrong answer: the first of a transaction that found something. What began
	// later is left out, because every order of that would be tried in vain.
	var begun []porcupine.Operation
	wrong := -1
	for at, operation := range history {
		in, out := operation.Input.(input), operation.Output.(output)
		if in.kind == getAll && out.known && out.values[0] != "" &&
			(wrong < 0 || operation.Return < history[wrong].Return) {
			wrong = at
		}
	}
	for at, operation := range history {
		if at == wrong {
			out := operation.Output.(output)
			out.values[0] = "never written"
			operation.Output = out
		}
		if operation.Call <= history[wrong].Return {
			begun = append(begun, operation)
		}
	}
	if result := porcupine.CheckOperationsTimeout(model, begun, 2*time.Minute); result != porcupine.Illegal {
		fmt.Printf("the check misses a wrong answer: %v\n", result)
		os.Exit(1)
	}
	fmt.Printf("%d operations over %d kills are strictly serializable\n", len(history), rounds)
}
