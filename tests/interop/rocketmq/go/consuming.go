package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// Of its message groups, a step sends so many messages in turn.
const (
	ordered = 20
	nacked  = "07"
)

// So many filters are tried side by side.
const aside = 8

func sendOrdered(topic string) {
	producer := producing(topic)
	defer stop(producer)
	for number := range ordered {
		sent := message(topic, fmt.Sprintf("%02d", number))
		sent.SetMessageGroup(fmt.Sprintf("g%d", number%3))
		send(producer, sent)
	}
}

// Order in groups of messages, of which one is nacked the first time.
func step7() {
	var both sync.WaitGroup
	both.Go(func() {
		topic := topicOf(7, "fifo")
		sendOrdered(topic)
		listener := pushing(groupOf(7, ""), topic, "*", func(one arrival) rmq.ConsumerResult {
			if one.body() == nacked && one.GetDeliveryAttempt() == 1 {
				return rmq.FAILURE
			}
			return rmq.SUCCESS
		})
		defer stop(listener)
		note(7, "order", values{"groups": byGroup(listener.waitFor(ordered+1, 40*time.Second))})
	})
	both.Go(func() {
		topic := topicOf(7, "simple")
		sendOrdered(topic)
		consumer := simple(groupOf(7, "simple"), topic, rmq.SUB_ALL)
		defer stop(consumer)
		all := []arrival{}
		for end := time.Now().Add(60 * time.Second); len(all) <= ordered && time.Now().Before(end); {
			for _, one := range must(receiveOnce(consumer, 1, lease)) {
				all = append(all, one)
				if one.body() == nacked && one.GetDeliveryAttempt() == 1 {
					check(consumer.ChangeInvisibleDuration(one.MessageView, time.Second))
				} else {
					ack(consumer, one)
				}
			}
		}
		note(7, "order of a simple consumer", values{"groups": byGroup(all), "attempts": attempts(ofBody(all, nacked))})
	})
	both.Wait()
}

// A simple consumer: polls, leases, receipts. The client itself refuses a batch of 0, and Ack does not look at the code
// of the answer; so what an ack with an old receipt did is seen by what comes again.
func step9() {
	topic := topicOf(9, "normal")
	producer, consumer := producing(topic), simple(groupOf(9, ""), topic, rmq.SUB_ALL)
	defer stop(producer, consumer)
	began := time.Now()
	_, err := consumer.Receive(background, 1, lease)
	note(9, "nothing", values{"outcome": outcome(err), "waited_s": seconds(time.Since(began))})
	for _, seconds := range []int{9, 10, 12 * 3_600, 12*3_600 + 1} {
		_, err := receiveOnce(consumer, 1, time.Duration(seconds)*time.Second)
		note(9, fmt.Sprintf("lease of %d s", seconds), values{"outcome": outcome(err)})
	}
	for _, count := range []int32{32, 33} {
		_, err := receiveOnce(consumer, count, lease)
		note(9, fmt.Sprintf("batch of %d", count), values{"outcome": outcome(err)})
	}
	for number := range 3 {
		send(producer, message(topic, fmt.Sprint(number)))
	}
	got := receive(consumer, 3, 2, patience)
	note(9, "received", values{"bodies": bodies(got)})
	slices.SortFunc(got, func(one, other arrival) int { return int(one.GetBody()[0]) - int(other.GetBody()[0]) })
	kept, dropped, changed := got[0], got[1], got[2]
	before := changed.GetReceiptHandle()
	change := func(one arrival, duration time.Duration) any {
		before := one.GetReceiptHandle()
		err := consumer.ChangeInvisibleDuration(one.MessageView, duration)
		if err != nil {
			one.ReceiptHandle = before // which the client has lost then
		}
		return outcome(err)
	}
	note(9, "change", values{"outcome": change(changed, 30*time.Second)})
	note(9, "new handle", values{"differs": changed.GetReceiptHandle() != before})
	ack(consumer, kept, changed)
	note(9, "change after ack", values{"outcome": change(kept, 30*time.Second)})
	again := receive(consumer, 1, 32, 20*time.Second)
	note(9, "again", values{"bodies": bodies(again), "attempts": attempts(again)})
	note(9, "change with the old handle", values{"outcome": change(dropped, 30*time.Second)})
	note(9, "change to 0", values{"outcome": change(again[0], 0)})
	began = time.Now()
	again = receive(consumer, 1, 1, patience)
	note(9, "again after 0", values{"attempts": attempts(again), "waited_s": seconds(time.Since(began))})
	note(9, "change to more than 12 h", values{"outcome": change(again[0], 13*time.Hour)})
	ack(consumer, again...)
	note(9, "acked", values{"left": len(must(receiveOnce(consumer, 32, lease)))})
	step9before(producer, consumer, topic)
}

// An ack with the handle from before a change counts until its own time is over.
func step9before(producer rmq.Producer, consumer rmq.SimpleConsumer, topic string) {
	send(producer, message(topic, "before"))
	one := receive(consumer, 1, 1, patience)[0]
	before := one.GetReceiptHandle()
	check(consumer.ChangeInvisibleDuration(one.MessageView, lease))
	one.ReceiptHandle = before
	ack(consumer, one)
	note(9, "ack with the handle before", values{"left": len(receive(consumer, 1, 1, lease+5*time.Second))})
}

// A push consumer, which fails twice; one that fails always; and where those messages are then. The view of a dead
// letter does not show its fields about where it was.
func step10() {
	topic := topicOf(10, "normal")
	var raised sync.Once
	answer := func(one arrival) rmq.ConsumerResult {
		if one.body() == "raises" {
			raised.Do(func() { panic("the listener has failed") })
		}
		if one.body() == "fails" && one.GetDeliveryAttempt() < 3 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	producer, listener := producing(topic), pushing(groupOf(10, ""), topic, "retried", answer)
	failing := pushing(groupOf(10, "dead"), topic, "dead", fail)
	defer stop(producer, listener, failing)
	for _, body := range []string{"succeeds", "fails", "raises"} {
		sent := message(topic, body)
		sent.SetTag("retried")
		send(producer, sent)
	}
	sent := message(topic, "always")
	sent.SetTag("dead")
	receipt := send(producer, sent)
	all := listener.waitFor(6, 60*time.Second)
	for _, body := range []string{"succeeds", "fails", "raises"} {
		seen := ofBody(all, body)
		note(10, body, values{"attempts": attempts(seen)})
		note(10, body+": waits", values{"waits_s": secondsBetween(seen)})
	}
	letter := buried("%DLQ%"+groupOf(10, "dead"), groupOf(10, "letters"))
	note(10, "always", values{"attempts": attempts(failing.seen())})
	note(10, "dead letter", values{"bodies": bodies(letter), "same_id": len(letter) > 0 && letter[0].GetMessageId() == receipt.MessageID})
}

// What is in a topic of dead letters, which is not there before the first.
func buried(topic, group string) (found []arrival) {
	until(100*time.Second, func() bool {
		consumer := newSimple(group, topic, rmq.SUB_ALL)
		if consumer.Start() != nil {
			time.Sleep(time.Second)
			return false
		}
		defer stop(consumer)
		found = receive(consumer, 1, 1, wait)
		ack(consumer, found...)
		return len(found) > 0
	})
	return found
}

// Two groups have all messages each; two consumers of a group share them.
func step11() {
	topic := topicOf(11, "normal")
	alone := pushing(groupOf(11, "a"), topic, "*", succeed)
	one, other := pushing(groupOf(11, "b"), topic, "*", succeed), pushing(groupOf(11, "b"), topic, "*", succeed)
	producer := producing(topic)
	defer stop(producer, alone, one, other)
	for number := range 20 {
		send(producer, message(topic, fmt.Sprintf("%02d", number)))
	}
	distinct := func(found []arrival) int { return len(slices.Compact(bodies(found))) }
	whole := alone.waitFor(20, 30*time.Second)
	until(30*time.Second, func() bool { return len(one.seen())+len(other.seen()) >= 20 })
	shared := append(one.seen(), other.seen()...)
	note(11, "alone", values{"count": len(whole), "distinct": distinct(whole)})
	note(11, "shared", values{"count": len(shared), "distinct": distinct(shared)})
}

// Filters. What they are given is in the program for Python, too; n is a number, and the last message has no tag.
func step12() {
	topic := topicOf(12, "normal")
	sql := func(text string) *rmq.FilterExpression { return rmq.NewFilterExpressionWithType(text, rmq.SQL92) }
	wanted := map[string]*rmq.FilterExpression{
		"all":              rmq.SUB_ALL,
		"a or b":           rmq.NewFilterExpression("a||b"),
		"a or b, spaced":   rmq.NewFilterExpression(" a || b "),
		"a":                rmq.NewFilterExpression("a"),
		"number":           sql("n > 1 AND TAGS IS NOT NULL"),
		"at least":         sql("n >= 2"),
		"less":             sql("n < 1.5"),
		"at most":          sql("n <= 1"),
		"negative":         sql("n > -1 AND n < +1"),
		"in":               sql("color IN ('red', 'blue')"),
		"not in":           sql("color NOT IN ('red')"),
		"between":          sql("n BETWEEN 1 AND 2"),
		"not between":      sql("n NOT BETWEEN 1 AND 2"),
		"not":              sql("NOT (n = 3) OR color IS NULL"),
		"not equal":        sql("TAGS <> 'a'"),
		"null":             sql("TAGS IS NULL"),
		"contains":         sql("color CONTAINS 'e'"),
		"not contains":     sql("color NOT CONTAINS 'ee'"),
		"starts":           sql("color STARTSWITH 'b'"),
		"ends":             sql("color NOT ENDSWITH 'd'"),
		"boolean":          sql("even = TRUE"),
		"names compared":   sql("n = twin"),
		"quoted":           sql("quoted = 'it''s'"),
		"comment and case": sql("n > 1 /* of them */ and Color is null"),
		"not converted":    sql("color > 1 OR n = 1"),
	}
	refused := map[string]string{
		"no SQL":          "n >",
		"equal to NULL":   "n = NULL",
		"more than text":  "n > 'a'",
		"wrong way round": "n BETWEEN 3 AND 1",
		"IN of a literal": "1 IN ('a')",
		"bare literal":    "1",
	}
	producer := producing(topic)
	defer stop(producer)
	tags := []string{"a", "b", "c", ""}
	for number, color := range []string{"red", "green", "blue", "red"} {
		sent := message(topic, fmt.Sprint(number))
		if tags[number] != "" {
			sent.SetTag(tags[number])
		}
		for name, value := range map[string]string{"n": fmt.Sprint(number), "color": color, "twin": fmt.Sprint(number / 2 * 2),
			"even": fmt.Sprint(number%2 == 0), "quoted": []string{"it's", "its"}[number%2]} {
			sent.AddProperty(name, value)
		}
		send(producer, sent)
	}
	works := []func(group string){}
	for name, expression := range wanted {
		works = append(works, func(group string) { note(12, name, values{"bodies": filtered(group, topic, expression)}) })
	}
	for name, text := range refused {
		works = append(works, func(group string) {
			consumer := simple(group, topic, sql(text))
			defer stop(consumer)
			_, err := receiveOnce(consumer, 1, lease)
			note(12, name, values{"outcome": outcome(err)})
		})
	}
	var all sync.WaitGroup
	for worker := range aside {
		all.Go(func() {
			for number := worker; number < len(works); number += aside {
				works[number](groupOf(12, fmt.Sprint(number)))
			}
		})
	}
	all.Wait()
}

// What two receives with a filter have. One that RocketMQ has not heard of yet is an internal error there, for a while.
func filtered(group, topic string, expression *rmq.FilterExpression) any {
	consumer := simple(group, topic, expression)
	defer stop(consumer)
	found, failures := []arrival{}, 0
	for range 2 {
		some, err := receiveOnce(consumer, 32, lease)
		for ; err != nil && failures < 3; failures++ {
			var refused *rmq.ErrRpcStatus
			if !errors.As(err, &refused) || refused.Code != 50001 {
				return outcome(err)
			}
			time.Sleep(time.Second)
			some, err = receiveOnce(consumer, 32, lease)
		}
		if err != nil {
			return outcome(err)
		}
		ack(consumer, some...)
		found = append(found, some...)
	}
	return bodies(found)
}

// A consumer stops while it works on a message.
func step13() {
	var both sync.WaitGroup
	topic := topicOf(13, "normal")
	producer := producing(topic)
	defer stop(producer)
	for _, tag := range []string{"pushed", "received"} {
		sent := message(topic, "unfinished")
		sent.SetTag(tag)
		send(producer, sent)
	}
	both.Go(func() {
		var free sync.WaitGroup
		free.Add(1)
		listener := pushing(groupOf(13, ""), topic, "pushed", func(arrival) rmq.ConsumerResult {
			free.Wait()
			return rmq.FAILURE
		})
		listener.waitFor(1, patience)
		time.AfterFunc(500*time.Millisecond, free.Done)
		stop(listener)
		listener = pushing(groupOf(13, ""), topic, "pushed", succeed)
		defer stop(listener)
		seen := listener.waitFor(1, 75*time.Second)
		note(13, "again", values{"bodies": bodies(seen)})
	})
	both.Go(func() {
		filter := rmq.NewFilterExpression("received")
		consumer := simple(groupOf(13, "simple"), topic, filter)
		taken := receive(consumer, 1, 1, patience)[0]
		stop(consumer)
		consumer = simple(groupOf(13, "simple"), topic, filter)
		defer stop(consumer)
		again := receive(consumer, 1, 1, 40*time.Second)
		note(13, "again at a simple consumer", values{"bodies": bodies(again), "attempts": attempts(again),
			"waits_s": secondsBetween(append([]arrival{taken}, again...))})
		ack(consumer, again...)
	})
	both.Wait()
}
