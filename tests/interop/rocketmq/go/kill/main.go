// The official client for Go under a server that is killed: a producer that sends until it is answered, and a consumer
// that receives and acks. What they were told is one line of JSON each, until standard input ends.
//
// kill ENDPOINT TOPIC GROUP
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	lease      = 2 * time.Second
	await      = 2 * time.Second
	quietEnd   = 3 // receives with nothing, after the last message was sent
	tries      = 200
	pause      = 200 * time.Millisecond
	noNews     = 40401
	badReceipt = 40013
)

type values = map[string]any

var (
	printing   sync.Mutex
	background = context.Background()
)

// The client says of no ack that it was refused.
type strict struct{ rmq.RpcClient }

func (it strict) AckMessage(ctx context.Context, request *v2.AckMessageRequest) (*v2.AckMessageResponse, error) {
	answer, err := it.RpcClient.AckMessage(ctx, request)
	if status := answer.GetStatus(); err == nil && status.GetCode() != v2.Code_OK {
		err = &rmq.ErrRpcStatus{Code: int32(status.GetCode()), Message: status.GetMessage()}
	}
	return answer, err
}

func note(what string, seen values) {
	printing.Lock()
	defer printing.Unlock()
	seen["what"] = what
	line, err := json.Marshal(seen)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func hasCode(err error, code int32) bool {
	var refused *rmq.ErrRpcStatus
	return errors.As(err, &refused) && refused.Code == code
}

// False: it was refused for good.
func untilAnswered(ask func() error) bool {
	for range tries {
		err := ask()
		if err == nil || hasCode(err, badReceipt) {
			return err == nil
		}
		note("again", values{"why": err.Error()})
		time.Sleep(pause)
	}
	log.Panic("it was never answered")
	return false
}

func produce(producer rmq.Producer, topic string, isOver <-chan struct{}, allSent chan<- struct{}) {
	defer close(allSent)
	for number := 1; ; number++ {
		select {
		case <-isOver:
			return
		default:
		}
		message := &rmq.Message{Topic: topic, Body: []byte(strconv.Itoa(number))}
		var receipts []*rmq.SendReceipt
		untilAnswered(func() (err error) {
			receipts, err = producer.Send(background, message)
			return err
		})
		note("sent", values{"number": number, "id": receipts[0].MessageID})
	}
}

func consume(consumer rmq.SimpleConsumer, allSent <-chan struct{}) {
	for quiet := 0; quiet < quietEnd; {
		var found []*rmq.MessageView
		untilAnswered(func() (err error) {
			found, err = consumer.Receive(background, 16, lease)
			if hasCode(err, noNews) {
				return nil
			}
			return err
		})
		select {
		case <-allSent:
			quiet++
		default:
		}
		for _, message := range found {
			quiet = 0
			number, err := strconv.Atoi(string(message.GetBody()))
			check(err)
			seen := func() values {
				return values{"number": number, "id": message.GetMessageId(), "attempt": message.GetDeliveryAttempt()}
			}
			note("received", seen())
			if untilAnswered(func() error { return consumer.Ack(background, message) }) {
				note("acked", seen())
			}
		}
	}
}

func main() {
	begin := rmq.NewRpcClient
	rmq.NewRpcClient = func(target string, options ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		client, err := begin(target, options...)
		return strict{client}, err
	}
	endpoint, topic, group := os.Args[1], os.Args[2], os.Args[3]
	config := &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	consumer, err := rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(await),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	check(err)
	check(consumer.Start())
	isOver, allSent := make(chan struct{}), make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() { produce(producer, topic, isOver, allSent) })
	both.Go(func() { consume(consumer, allSent) })
	note("started", values{})
	_, err = io.Copy(io.Discard, os.Stdin)
	check(err)
	close(isOver)
	both.Wait()
	check(producer.GracefulStop())
	check(consumer.GracefulStop())
}
