// What the official client for Go sees of a server: one line of JSON for each observation.
//
// conformance ENDPOINT RUN [STEP ...]
//
// Against the gateway and against RocketMQ it does the same, so that what it prints can be compared. Each step has topics
// and groups of its own, named by step and RUN; steps run side by side. With TLS=1 in the environment it uses TLS; access
// keys are ACCESS_KEY and SECRET_KEY there. Steps and their names are those of the program for Python.
//
// Left out: step 14, calls that no client makes; step 15, because this client does not compress.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

var steps = map[int]func(){1: step1, 2: step2, 3: step3, 4: step4, 5: step5, 6: step6, 7: step7, 8: step8, 9: step9,
	10: step10, 11: step11, 12: step12, 13: step13, 16: step16}

func main() {
	endpoint, run = os.Args[1], os.Args[2]
	rmq.EnableSsl = os.Getenv("TLS") != ""
	chosen := []int{}
	for _, word := range os.Args[3:] {
		chosen = append(chosen, must(strconv.Atoi(word)))
	}
	if len(chosen) == 0 {
		for number := range steps {
			chosen = append(chosen, number)
		}
	}
	var all sync.WaitGroup
	var failed atomic.Bool
	for _, number := range chosen {
		all.Go(func() {
			defer func() {
				if why := recover(); why != nil {
					failed.Store(true)
					note(number, "failed", values{"trace": fmt.Sprint(why, "\n", string(debug.Stack()))})
				}
			}()
			steps[number]()
			note(number, "done", values{})
		})
	}
	all.Wait()
	if failed.Load() {
		os.Exit(1)
	}
}
