package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	lease    = 30 * time.Second
	patience = 40 * time.Second
	period   = 20 * time.Millisecond
	noNews   = 40401
)

type values = map[string]any

type arrival struct {
	message *rmq.MessageView
	at      time.Time
}

var (
	printing   sync.Mutex
	background = context.Background()
)

func note(what string, seen values) {
	printing.Lock()
	defer printing.Unlock()
	seen["what"] = what
	line := must(json.Marshal(seen))
	fmt.Println(string(line))
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func producing(topic string, options ...rmq.ProducerOption) rmq.Producer {
	producer := must(rmq.NewProducer(config(""), append(options, rmq.WithTopics(topic))...))
	check(producer.Start())
	return producer
}

func simple(group, topic string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	subscriptions := map[string]*rmq.FilterExpression{topic: filter}
	consumer := must(rmq.NewSimpleConsumer(config(group),
		rmq.WithSimpleAwaitDuration(3*time.Second), rmq.WithSimpleSubscriptionExpressions(subscriptions)))
	check(consumer.Start())
	return consumer
}

// A push consumer that goes on until `isDone`, and what it has seen.
func pushed(group, topic string, answer func(*rmq.MessageView) rmq.ConsumerResult, isDone func([]*rmq.MessageView) bool,
) []*rmq.MessageView {
	var lock sync.Mutex
	var seen []*rmq.MessageView
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		seen = append(seen, message)
		return answer(message)
	}
	subscriptions := map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}
	consumer := must(rmq.NewPushConsumer(config(group), rmq.WithPushSubscriptionExpressions(subscriptions),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume})))
	check(consumer.Start())
	defer consumer.GracefulStop()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(period) {
		lock.Lock()
		if isDone(seen) {
			defer lock.Unlock()
			return slices.Clone(seen)
		}
		lock.Unlock()
	}
	return seen
}

func atLeast(count int) func([]*rmq.MessageView) bool {
	return func(seen []*rmq.MessageView) bool { return len(seen) >= count }
}

// Receives until `isDone`, and acks all.
func receive(consumer rmq.SimpleConsumer, isDone func([]arrival) bool) (found []arrival) {
	for end := time.Now().Add(patience); !isDone(found) && time.Now().Before(end); {
		for _, message := range receiveOnce(consumer) {
			found = append(found, arrival{message, time.Now()})
			check(consumer.Ack(background, message))
		}
	}
	return found
}

func receiveOnce(consumer rmq.SimpleConsumer) []*rmq.MessageView {
	messages, err := consumer.Receive(background, 32, lease)
	var refused *rmq.ErrRpcStatus
	if errors.As(err, &refused) && refused.Code == noNews {
		return nil
	}
	check(err)
	return messages
}

func message(topic, body string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(body)}
}

func send(producer rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	return must(producer.Send(background, message))[0]
}

func bodies(found []arrival) []string {
	all := []string{}
	for _, one := range found {
		all = append(all, string(one.message.GetBody()))
	}
	slices.Sort(all)
	return all
}

func has(count int) func([]arrival) bool {
	return func(found []arrival) bool { return len(found) >= count }
}

func attemptsOf(seen []*rmq.MessageView, body string) []int32 {
	attempts := []int32{}
	for _, one := range seen {
		if string(one.GetBody()) == body {
			attempts = append(attempts, one.GetDeliveryAttempt())
		}
	}
	return attempts
}
