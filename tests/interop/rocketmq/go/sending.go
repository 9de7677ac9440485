package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// Topics that are there, and that are not.
func step1() {
	producer := producing(topicOf(1, "normal"))
	defer stop(producer)
	receipt := send(producer, message(topicOf(1, "normal"), "there"))
	note(1, "sent", values{"has_id": receipt.MessageID != "", "recall": receipt.RecallHandle})
	note(1, "unknown topic", values{"outcome": trySend(producer, message("no_such_topic_"+run, "not there"))})
	other := must(rmq.NewProducer(config(""), rmq.WithTopics("no_topic_to_start_with_"+run)))
	err := other.Start()
	note(1, "start with an unknown topic", values{"outcome": outcome(err)})
	if err == nil {
		stop(other)
	}
}

// What is received is what was sent. The view has no type and does not say whether it is corrupted; Ack does not look
// at the code of the answer, so acks are seen by what comes again, if anything.
func step2() {
	topic := topicOf(2, "normal")
	producer, consumer := producing(topic), simple(groupOf(2, ""), topic, rmq.SUB_ALL)
	defer stop(producer, consumer)
	properties := map[string]string{"name": "Wert", "ümlaut": "süß", "emoji": "\U0001f680", "dots": "a.b", "empty": ""}
	sent := message(topic, "body €")
	sent.SetTag("tag")
	sent.SetKeys("one", "two", "three")
	for name, value := range properties {
		sent.AddProperty(name, value)
	}
	receipt := send(producer, sent)
	got := receive(consumer, 1, 1, patience)[0]
	own := map[string]string{}
	for name, value := range got.GetProperties() {
		if _, is := properties[name]; is {
			own[name] = value
		}
	}
	keys := slices.Sorted(slices.Values(got.GetKeys()))
	note(2, "received", values{"topic": got.GetTopic() == topic, "id": got.GetMessageId() == receipt.MessageID,
		"body": got.body(), "tag": got.GetTag(), "keys": keys, "properties": own, "attempt": got.GetDeliveryAttempt(),
		"group": got.GetMessageGroup(), "delivery": got.GetDeliveryTimestamp(), "lite": got.GetLiteTopic(),
		"trace": got.GetTraceContext(), "has_host": *got.GetBornHost() != "", "has_handle": got.GetReceiptHandle() != "",
		"born_s": seconds(time.Since(*got.GetBornTimestamp()).Round(10 * time.Second))})
	ack(consumer, got)
	note(2, "acked", values{"left": len(must(receiveOnce(consumer, 1, lease)))})
	spaced := message(topic, "spaced")
	spaced.SetKeys("one key")
	send(producer, spaced)
	got = receive(consumer, 1, 1, patience)[0]
	note(2, "key with a space", values{"keys": got.GetKeys()})
	ack(consumer, got)
}

// Sizes of bodies.
func step3() {
	topic := topicOf(3, "normal")
	producer, consumer := producing(topic), simple(groupOf(3, ""), topic, rmq.SUB_ALL)
	defer stop(producer, consumer)
	for _, size := range []int{0, 1, 100_000, 4 << 20, 4<<20 + 1} {
		sent := message(topic, strings.Repeat("b", size))
		note(3, "send", values{"size": size, "outcome": trySend(producer, sent)})
	}
	got := receive(consumer, 3, 32, patience)
	sizes := []int{}
	for _, one := range got {
		sizes = append(sizes, len(one.GetBody()))
	}
	slices.Sort(sizes)
	note(3, "received", values{"sizes": sizes})
	ack(consumer, got...)
}

// What may not be in properties.
func step4() {
	topic := topicOf(4, "normal")
	producer := producing(topic)
	defer stop(producer)
	many := func(count int) map[string]string {
		properties := map[string]string{}
		for number := range count {
			properties[fmt.Sprintf("p%d", number)] = "v"
		}
		return properties
	}
	for name, properties := range map[string]map[string]string{
		"128":                          many(128),
		"129":                          many(129),
		"16 KiB":                       {"p": strings.Repeat("v", 16<<10-1)},
		"more than 16 KiB":             {"p": strings.Repeat("v", 16<<10)},
		"reserved name":                {"TRACE_ON": "v"},
		"control character in a name":  {"a\u0001b": "v"},
		"control character in a value": {"a": "v\u0085w"},
	} {
		sent := message(topic, name)
		for property, value := range properties {
			sent.AddProperty(property, value)
		}
		note(4, name, values{"outcome": trySend(producer, sent)})
	}
}

// Tags, keys and groups that may not be.
func step5() {
	topic, ordered := topicOf(5, "normal"), topicOf(5, "fifo")
	producer := producing(topic)
	defer stop(producer)
	tagged := func(tag string) *rmq.Message {
		sent := message(topic, "t")
		sent.SetTag(tag)
		return sent
	}
	keyed := func(key string) *rmq.Message {
		sent := message(topic, "k")
		sent.SetKeys(key)
		return sent
	}
	grouped := func(group string) *rmq.Message {
		sent := message(ordered, "g")
		sent.SetMessageGroup(group)
		return sent
	}
	for name, sent := range map[string]*rmq.Message{
		"empty tag":                      tagged(""),
		"blank tag":                      tagged(" "),
		"bar in the tag":                 tagged("a|b"),
		"control character in the tag":   tagged("a\u0007b"),
		"empty key":                      keyed(""),
		"blank key":                      keyed(" "),
		"control character in a key":     keyed("a\u0007b"),
		"empty group":                    grouped(""),
		"blank group":                    grouped(" "),
		"control character in the group": grouped("a\u0007b"),
		"group of 63":                    grouped(strings.Repeat("g", 63)),
		"group of 64":                    grouped(strings.Repeat("g", 64)),
	} {
		note(5, name, values{"outcome": trySend(producer, sent)})
	}
}

// Delay, and recall.
func step6() {
	topic := topicOf(6, "delay")
	producer, consumer := producing(topic), simple(groupOf(6, ""), topic, rmq.SUB_ALL)
	defer stop(producer, consumer)
	due := time.Now().Add(4 * time.Second).Truncate(time.Millisecond)
	later := func(body string, at time.Time) *rmq.Message {
		sent := message(topic, body)
		sent.SetDelayTimestamp(at)
		return sent
	}
	recall := func(handle string) (string, any) {
		id, err := producer.Recall(background, topic, handle)
		return id, outcome(err)
	}
	first := send(producer, later("in time", due))
	wrong := send(producer, later("recalled", due.Add(time.Second)))
	send(producer, later("past", due.Add(-time.Hour)))
	note(6, "handle", values{"present": first.RecallHandle != ""})
	id, how := recall(wrong.RecallHandle)
	note(6, "recall", values{"outcome": how, "same_id": id == wrong.MessageID})
	_, how = recall(wrong.RecallHandle)
	note(6, "recall twice", values{"outcome": how})
	_, how = recall("garbage")
	note(6, "recall garbage", values{"outcome": how})
	note(6, "23 h", values{"outcome": trySend(producer, later("23 h", due.Add(23*time.Hour)))})
	note(6, "25 h", values{"outcome": trySend(producer, later("25 h", due.Add(25*time.Hour)))})
	late, isEarly, all := map[string]int{}, false, []arrival{}
	for end := due.Add(5 * time.Second); time.Now().Before(end); {
		for _, one := range must(receiveOnce(consumer, 32, lease)) {
			all = append(all, one)
			if one.body() == "in time" {
				late[one.body()] = seconds(one.at.Sub(due))
				isEarly = one.at.Before(due)
			}
			ack(consumer, one)
		}
	}
	note(6, "received", values{"late_s": late, "early": isEarly})
	note(6, "which", values{"bodies": bodies(all)})
	for _, one := range all {
		at := one.GetDeliveryTimestamp()
		wanted := map[string]time.Time{"in time": due, "past": due.Add(-time.Hour)}[one.body()]
		note(6, "time", values{"body": one.body(), "same": at != nil && at.Equal(wanted)})
	}
	_, how = recall(first.RecallHandle)
	note(6, "recall late", values{"outcome": how})
}

// Who is asked what becomes of a transaction, and how often.
type checking struct {
	lock  sync.Mutex
	asked map[string]int
}

func (one *checking) count(body string) int {
	one.lock.Lock()
	defer one.lock.Unlock()
	return one.asked[body]
}

func (one *checking) check(half *rmq.MessageView) rmq.TransactionResolution {
	body := string(half.GetBody())
	one.lock.Lock()
	defer one.lock.Unlock()
	one.asked[body]++
	if one.asked[body] == 1 {
		note(8, "checked", values{"body": body, "tag": half.GetTag(), "topic": half.GetTopic() == topicOf(8, "transaction")})
	}
	switch {
	case body == "checker rolls back":
		return rmq.ROLLBACK
	case body == "checker does not know" && one.asked[body] == 1:
		return rmq.UNKNOWN
	}
	return rmq.COMMIT
}

// Transactions.
func step8() {
	topic := topicOf(8, "transaction")
	checker := &checking{asked: map[string]int{}}
	producer := producing(topic, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: checker.check}))
	consumer := simple(groupOf(8, ""), topic, rmq.SUB_ALL)
	defer stop(producer, consumer)
	for _, body := range []string{"commit", "rollback", "checker commits", "checker rolls back", "checker does not know"} {
		decision := producer.BeginTransaction()
		half := message(topic, body)
		half.SetTag("half")
		receipt := must(producer.SendWithTransaction(background, half, decision))[0]
		note(8, "sent: "+body, values{"has_transaction": receipt.TransactionId != ""})
		switch body {
		case "commit":
			note(8, body, values{"outcome": outcome(decision.Commit())})
			note(8, "commit twice", values{"outcome": outcome(decision.Commit())})
			note(8, "rollback after commit", values{"outcome": outcome(decision.RollBack())})
		case "rollback":
			note(8, body, values{"outcome": outcome(decision.RollBack())})
		}
	}
	until(60*time.Second, func() bool {
		return checker.count("checker commits") > 0 && checker.count("checker rolls back") > 0 &&
			checker.count("checker does not know") > 1
	})
	note(8, "asked again", values{"again": checker.count("checker does not know") > 1})
	got := receive(consumer, 3, 32, 25*time.Second)
	ack(consumer, got...)
	note(8, "received", values{"bodies": bodies(got)})
	note(8, "acked", values{"left": len(must(receiveOnce(consumer, 32, lease)))})
}

// Priorities, where the route offers them; RocketMQ does from 5.4 on, and the client refuses by itself before.
func step16() {
	topic := topicOf(16, "priority")
	producer := producing(topic)
	defer stop(producer)
	var how any
	for _, one := range []struct {
		body     string
		priority int32
	}{{"low", 0}, {"high", 9}, {"middle", 5}} {
		sent := message(topic, one.body)
		check(sent.SetPriority(one.priority))
		how = trySend(producer, sent)
	}
	note(16, "sent", values{"outcome": how})
	order := []string{}
	if how == "ok" {
		consumer := simple(groupOf(16, ""), topic, rmq.SUB_ALL)
		defer stop(consumer)
		for range 3 {
			for _, one := range receive(consumer, 1, 1, patience) {
				order = append(order, one.body())
				ack(consumer, one)
			}
		}
	}
	note(16, "received", values{"order": order})
}
