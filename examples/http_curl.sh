#!/bin/sh
# Sends a message, waits until it is due, and acks it, with curl and nothing else. Run: sh examples/http_curl.sh
# It needs `tickwheel serve` and `tickwheel web`; another URL is the first argument. Where the broker wants a token, add
# -H "Authorization: Bearer $TICKWHEEL_TOKEN" to each curl.
set -eu

topic=${1:-http://127.0.0.1:7413}/v1/topics/mails
group=$topic/groups/senders
ask() { curl --fail-with-body --silent --show-error -H 'Content-Type: application/json' "$@"; }

ask "$topic/messages" -d '{"body": {"to": "ada"}, "delay": "1s", "key": "welcome-ada"}'

while :; do
    received=$(ask "$group/receive" -d '{"max": 10, "wait": "20s", "lease": "1m"}')
    receipts=$(printf %s "$received" | grep -o '"receipt":"[^"]*"' | cut -d : -f 2 | paste -s -d , -)
    if [ -n "$receipts" ]; then
        printf '%s\n' "$received"
        ask "$group/settle" -d "{\"ack\": [$receipts]}"
        break
    fi
done
