// What the official client for Go sees of a server: one line of JSON for each step, which run side by side.
//
// env rocketmq.client.enableSsl=false conformance ENDPOINT
package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

func normal(topic string) {
	producer, consumer := producing(topic), simple(topic, topic, rmq.SUB_ALL)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	sent := message(topic, "10 €")
	sent.SetTag("red")
	sent.SetKeys("one", "two")
	sent.AddProperty("colour", "rot")
	sent.AddProperty("Größe", "süß \U0001f680")
	receipt := send(producer, sent)
	got := receive(consumer, has(1))[0].message
	properties := values{"colour": got.GetProperties()["colour"], "Größe": got.GetProperties()["Größe"]}
	note("normal", values{"body": string(got.GetBody()), "tag": got.GetTag(), "keys": got.GetKeys(),
		"properties": properties, "attempt": got.GetDeliveryAttempt(), "sameId": got.GetMessageId() == receipt.MessageID})
	note("acked", values{"left": len(receiveOnce(consumer))})
}

func delay(topic string) {
	producer, consumer := producing(topic), simple(topic, topic, rmq.SUB_ALL)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	due := time.Now().Add(3 * time.Second)
	later := func(body string, at time.Time) *rmq.SendReceipt {
		sent := message(topic, body)
		sent.SetDelayTimestamp(at)
		return send(producer, sent)
	}
	later("on time", due)
	wrong := later("recalled", due.Add(500*time.Millisecond))
	later("last", due.Add(time.Second))
	id := must(producer.Recall(background, topic, wrong.RecallHandle))
	found := receive(consumer, func(all []arrival) bool { return slices.Contains(bodies(all), "last") })
	isEarly := slices.ContainsFunc(found, func(one arrival) bool { return one.at.UnixMilli() < due.UnixMilli() })
	note("delay", values{"bodies": bodies(found), "early": isEarly, "sameId": id == wrong.MessageID})
}

func fifo(topic string) {
	producer := producing(topic)
	defer producer.GracefulStop()
	for number := range 12 {
		sent := message(topic, fmt.Sprint(number))
		sent.SetMessageGroup(fmt.Sprintf("group %d", number%3))
		send(producer, sent)
	}
	groups := map[string][]json.Number{}
	for _, one := range pushed(topic, topic, succeed, atLeast(12)) {
		group := *one.GetMessageGroup()
		groups[group] = append(groups[group], json.Number(one.GetBody()))
	}
	note("fifo", values{"groups": groups})
}

func succeed(*rmq.MessageView) rmq.ConsumerResult { return rmq.SUCCESS }

func transaction(topic string) {
	var checked sync.Map
	checker := rmq.TransactionChecker{Check: func(half *rmq.MessageView) rmq.TransactionResolution {
		checked.Store(string(half.GetBody()), true)
		if string(half.GetBody()) == "checked" {
			return rmq.COMMIT
		}
		return rmq.ROLLBACK
	}}
	keys := func() []string {
		all := []string{}
		checked.Range(func(body, _ any) bool { all = append(all, body.(string)); return true })
		slices.Sort(all)
		return all
	}
	producer, consumer := producing(topic, rmq.WithTransactionChecker(&checker)), simple(topic, topic, rmq.SUB_ALL)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	for _, body := range []string{"committed", "rolled back", "checked", "checked in vain"} {
		decision := producer.BeginTransaction()
		must(producer.SendWithTransaction(background, message(topic, body), decision))
		switch body {
		case "committed":
			check(decision.Commit())
		case "rolled back":
			check(decision.RollBack())
		}
	}
	found := receive(consumer, func(all []arrival) bool { return len(all) > 1 && len(keys()) > 1 })
	note("transaction", values{"bodies": bodies(found), "checked": keys()})
}

func retry(topic string) {
	producer := producing(topic)
	defer producer.GracefulStop()
	send(producer, message(topic, "fails"))
	send(producer, message(topic, "works"))
	answer := func(one *rmq.MessageView) rmq.ConsumerResult {
		if string(one.GetBody()) == "fails" && one.GetDeliveryAttempt() == 1 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	seen := pushed(topic, topic, answer, atLeast(3))
	note("retry", values{"fails": attemptsOf(seen, "fails"), "works": attemptsOf(seen, "works")})
}

func filter(topic string) {
	producer := producing(topic)
	byTag := simple(topic+"-tag", topic, rmq.NewFilterExpression("red || blue"))
	bySql := simple(topic+"-sql", topic, rmq.NewFilterExpressionWithType("number > 1 AND TAGS <> 'blue'", rmq.SQL92))
	defer producer.GracefulStop()
	defer byTag.GracefulStop()
	defer bySql.GracefulStop()
	for number, tag := range []string{"red", "green", "blue", "red"} {
		sent := message(topic, fmt.Sprint(number))
		sent.SetTag(tag)
		sent.AddProperty("number", fmt.Sprint(number))
		send(producer, sent)
	}
	note("filter", values{"tag": bodies(receive(byTag, has(3))), "sql": bodies(receive(bySql, has(1)))})
}

func dead(topic string) {
	producer := producing(topic)
	defer producer.GracefulStop()
	send(producer, message(topic, "fails"))
	fail := func(*rmq.MessageView) rmq.ConsumerResult { return rmq.FAILURE }
	seen := pushed(topic, topic, fail, atLeast(2))
	letters := simple(topic+"-letters", "%DLQ%"+topic, rmq.SUB_ALL)
	defer letters.GracefulStop()
	note("dead", values{"attempts": attemptsOf(seen, "fails"), "bodies": bodies(receive(letters, has(1)))})
}

func main() {
	var all sync.WaitGroup
	for name, step := range map[string]func(string){"normal": normal, "delay": delay, "fifo": fifo,
		"transaction": transaction, "retry": retry, "filter": filter, "dead": dead} {
		all.Add(1)
		go func() {
			defer all.Done()
			step(name + "-go")
		}()
	}
	all.Wait()
}
