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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	lease    = 10 * time.Second
	wait     = 5 * time.Second
	patience = 15 * time.Second
	period   = 20 * time.Millisecond
	noNews   = 40401
)

type values = map[string]any

var (
	endpoint, run string
	printing      sync.Mutex
	background    = context.Background()
)

func note(step int, what string, seen values) {
	printing.Lock()
	defer printing.Unlock()
	seen["step"], seen["what"] = step, what
	fmt.Println(string(must(json.Marshal(seen))))
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

// What a call has come to: "ok", or the class and code of its error.
func outcome(err error) any {
	var refused *rmq.ErrRpcStatus
	if err == nil {
		return "ok"
	}
	if errors.As(err, &refused) {
		return values{"error": "ErrRpcStatus", "code": refused.Code}
	}
	if failed, is := status.FromError(err); is {
		return values{"error": "Status", "code": failed.Code()}
	}
	return values{"error": "error", "code": nil}
}

func topicOf(step int, kind string) string { return fmt.Sprintf("diff_%d_%s_%s", step, kind, run) }

func groupOf(step int, name string) string { return fmt.Sprintf("diff_%d_group%s_%s", step, name, run) }

func config(group string) *rmq.Config {
	keys := &credentials.SessionCredentials{AccessKey: os.Getenv("ACCESS_KEY"), AccessSecret: os.Getenv("SECRET_KEY")}
	return &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: keys}
}

type starts interface{ Start() error }

// One that has started. It is made again when that took too long, which it does on a busy machine.
func started[T starts](make func() T) T {
	client := make()
	err := client.Start()
	for tries := 1; tries < 3 && err != nil; tries++ {
		client = make()
		err = client.Start()
	}
	check(err)
	return client
}

func producing(topic string, options ...rmq.ProducerOption) rmq.Producer {
	return started(func() rmq.Producer {
		return must(rmq.NewProducer(config(""), append(options, rmq.WithTopics(topic))...))
	})
}

func newSimple(group, topic string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	subscriptions := map[string]*rmq.FilterExpression{topic: filter}
	return must(rmq.NewSimpleConsumer(config(group),
		rmq.WithSimpleAwaitDuration(wait), rmq.WithSimpleSubscriptionExpressions(subscriptions)))
}

func simple(group, topic string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	return started(func() rmq.SimpleConsumer { return newSimple(group, topic, filter) })
}

type arrival struct {
	*rmq.MessageView
	at time.Time
}

func (one arrival) body() string { return string(one.GetBody()) }

// A push consumer, and what it has seen.
type listening struct {
	rmq.PushConsumer
	lock sync.Mutex
	all  []arrival
}

func pushing(group, topic, tags string, answer func(arrival) rmq.ConsumerResult) *listening {
	listener := &listening{}
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		one := arrival{message, time.Now()}
		listener.lock.Lock()
		listener.all = append(listener.all, one)
		listener.lock.Unlock()
		return answer(one)
	}
	subscriptions := map[string]*rmq.FilterExpression{topic: rmq.NewFilterExpression(tags)}
	listener.PushConsumer = started(func() rmq.PushConsumer {
		return must(rmq.NewPushConsumer(config(group), rmq.WithPushSubscriptionExpressions(subscriptions),
			rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume})))
	})
	return listener
}

func succeed(arrival) rmq.ConsumerResult { return rmq.SUCCESS }

func fail(arrival) rmq.ConsumerResult { return rmq.FAILURE }

func (one *listening) seen() []arrival {
	one.lock.Lock()
	defer one.lock.Unlock()
	return slices.Clone(one.all)
}

func (one *listening) waitFor(count int, patience time.Duration) []arrival {
	until(patience, func() bool { return len(one.seen()) >= count })
	return one.seen()
}

func until(patience time.Duration, isSo func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(period) {
		if isSo() {
			return true
		}
	}
	return isSo()
}

type stops interface{ GracefulStop() error }

// Side by side: one that waits for its poll does not hold up the others.
func stop(clients ...stops) {
	var all sync.WaitGroup
	for _, client := range clients {
		all.Go(func() { check(client.GracefulStop()) })
	}
	all.Wait()
}

// One receive; a message that is not there is none, and not an error as this client has it.
func receiveOnce(consumer rmq.SimpleConsumer, count int32, lease time.Duration) ([]arrival, error) {
	messages, err := consumer.Receive(background, count, lease)
	var refused *rmq.ErrRpcStatus
	if errors.As(err, &refused) && refused.Code == noNews {
		return nil, nil
	}
	found := []arrival{}
	for _, message := range messages {
		found = append(found, arrival{message, time.Now()})
	}
	return found, err
}

// So many messages, if they come in time.
func receive(consumer rmq.SimpleConsumer, count int, atOnce int32, patience time.Duration) (found []arrival) {
	for end := time.Now().Add(patience); len(found) < count && time.Now().Before(end); {
		found = append(found, must(receiveOnce(consumer, atOnce, lease))...)
	}
	return found
}

// Again when the answer took too long, which it does on a busy machine.
func ack(consumer rmq.SimpleConsumer, messages ...arrival) {
	for _, one := range messages {
		err := consumer.Ack(background, one.MessageView)
		for tries := 1; tries < 5 && status.Code(err) == codes.DeadlineExceeded; tries++ {
			err = consumer.Ack(background, one.MessageView)
		}
		check(err)
	}
}

func message(topic, body string) *rmq.Message { return &rmq.Message{Topic: topic, Body: []byte(body)} }

func send(producer rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	return must(producer.Send(background, message))[0]
}

// What a send that may be refused has come to.
func trySend(producer rmq.Producer, message *rmq.Message) any {
	_, err := producer.Send(background, message)
	return outcome(err)
}

func bodies(found []arrival) []string {
	all := []string{}
	for _, one := range found {
		all = append(all, one.body())
	}
	slices.Sort(all)
	return all
}

func attempts(found []arrival) []int32 {
	all := []int32{}
	for _, one := range found {
		all = append(all, one.GetDeliveryAttempt())
	}
	return all
}

// What has come, by message group, in its order.
func byGroup(found []arrival) map[string][]string {
	groups := map[string][]string{}
	for _, one := range found {
		group := *one.GetMessageGroup()
		groups[group] = append(groups[group], one.body())
	}
	return groups
}

func ofBody(found []arrival, body string) []arrival {
	return slices.DeleteFunc(slices.Clone(found), func(one arrival) bool { return one.body() != body })
}

func seconds(duration time.Duration) int { return int(duration.Round(time.Second).Seconds()) }

func secondsBetween(found []arrival) []int {
	all := []int{}
	for number := 1; number < len(found); number++ {
		all = append(all, seconds(found[number].at.Sub(found[number-1].at)))
	}
	return all
}
