// What the official client for Go does to a server, and what it sees meanwhile: a line of JSON for each part of it.
//
//	load ENDPOINT send topic=TOPIC [NAME=NUMBER ...]
//
// With the variable rocketmq.client.enableSsl=false, it speaks plain text.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var options = map[string]string{}

func number(name string, otherwise int) int {
	given, found := options[name]
	if !found {
		return otherwise
	}
	return must(strconv.Atoi(given))
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	for _, word := range os.Args[3:] {
		name, value, _ := strings.Cut(word, "=")
		options[name] = value
	}
	if os.Args[2] != "send" {
		log.Fatalf("%s is no mode", os.Args[2])
	}
	config := &rmq.Config{Endpoint: os.Args[1], Credentials: &credentials.SessionCredentials{}}
	producer := must(rmq.NewProducer(config, rmq.WithTopics(options["topic"])))
	check(producer.Start())
	for _, part := range []string{"warm", "seconds"} {
		send(producer, part, time.Duration(number(part, 10))*time.Second)
	}
}

// From so many goroutines, each waiting for its own answers.
func send(producer rmq.Producer, part string, long time.Duration) {
	body := make([]byte, number("size", 1_024))
	began := time.Now()
	times := make([][]time.Duration, number("threads", 1))
	var all sync.WaitGroup
	for at := range times {
		all.Go(func() {
			for time.Since(began) < long {
				message := &rmq.Message{Topic: options["topic"], Body: body}
				sent := time.Now()
				must(producer.Send(context.Background(), message))
				times[at] = append(times[at], time.Since(sent))
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	sorted := slices.Concat(times...)
	slices.Sort(sorted)
	answered := map[string]float64{"p50": share(sorted, 0.5), "p99": share(sorted, 0.99), "max": share(sorted, 1)}
	line := must(json.Marshal(map[string]any{
		"part": part, "messages": len(sorted), "seconds": took, "answered_ms": answered,
	}))
	fmt.Println(string(line))
}

func share(sorted []time.Duration, part float64) float64 {
	at := min(len(sorted)-1, int(float64(len(sorted))*part))
	return float64(sorted[at].Microseconds()) / 1e3
}
