// A message's way, with the client that oapi-codegen makes of docs/openapi.json: `go run . http://127.0.0.1:7413`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"tickwheel/interop/api"
)

const (
	topic = "interop-go"
	group = "workers"
	key   = "order 17/a"
)

func main() {
	client, err := api.NewClientWithResponses(os.Args[1])
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	sent, err := client.SendMessageWithResponse(ctx, topic, nil, api.Send{
		Body:  map[string]any{"order": 17},
		Key:   pointer(key),
		Delay: pointer("1h"),
	})
	must(err)
	expect(sent.JSON201 != nil && !sent.JSON201.Duplicate, "send", sent.Body)
	id := sent.JSON201.Id

	found, err := client.GetMessageByKeyWithResponse(ctx, topic, key)
	must(err)
	expect(found.JSON200 != nil && found.JSON200.Id == id && found.JSON200.State == "scheduled", "get", found.Body)

	daily := api.NewSchedule{Topic: topic, Cron: pointer("0 9 * * *"), Tz: pointer("Europe/Paris"), Text: pointer("tea")}
	schedule, err := client.PutScheduleWithResponse(ctx, "interop-go", daily)
	must(err)
	expect(schedule.JSON201 != nil && schedule.JSON201.Next[0].After(time.Now()), "schedule", schedule.Body)

	soon := time.Now().Add(200 * time.Millisecond)
	move := api.Move{Topic: pointer(topic), Key: pointer(key), DeliverAt: &soon}
	moved, err := client.CommitTransactionWithResponse(ctx, nil, api.Transaction{Reschedules: &[]api.Move{move}})
	must(err)
	expect(moved.JSON200 != nil && !moved.JSON200.Repeated, "transaction", moved.Body)

	received, err := client.ReceiveMessagesWithResponse(ctx, topic, group, api.Receive{Wait: pointer("30s")})
	must(err)
	expect(received.JSON200 != nil && len(received.JSON200.Items) == 1, "receive", received.Body)
	delivery := received.JSON200.Items[0]
	body, isObject := delivery.Body.(map[string]any)
	expect(delivery.Id == id && delivery.Key != nil && *delivery.Key == key, "delivery", received.Body)
	expect(isObject && body["order"] == 17.0, "body", received.Body)

	settled, err := client.SettleDeliveriesWithResponse(ctx, topic, group, api.Settle{Ack: &[]string{delivery.Receipt}})
	must(err)
	expect(settled.JSON200 != nil && len(settled.JSON200.Ack) == 1 && settled.JSON200.Ack[0] == "acked", "settle", settled.Body)

	missing, err := client.GetMessageWithResponse(ctx, "9000000000000000000")
	must(err)
	problem := missing.ApplicationproblemJSON404
	expect(problem != nil && problem.Status == 404 && problem.Code == "not_found", "problem", missing.Body)

	fmt.Println("acked", id)
}

func pointer[T any](value T) *T { return &value }

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func expect(isTrue bool, what string, answer []byte) {
	if !isTrue {
		log.Fatalf("%s: %s", what, answer)
	}
}
