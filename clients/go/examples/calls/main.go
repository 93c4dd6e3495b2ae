// The calls of the guide.
package main

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"weirgate"
)

func main() {
	ctx := context.Background()
	client, err := weirgate.New(weirgate.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	// Takes all amounts, or returns ErrDenied and takes none. Waits up to 2 s for them.
	bucket := weirgate.Bucket{Entity: "openai", Resource: "gpt-4", Take: weirgate.Amounts{"tpm": 500, "slots": 1}}
	grant, err := client.Acquire(ctx, bucket, &weirgate.AcquireOptions{Wait: 2 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	grant.Adjust(ctx, weirgate.Amounts{"tpm": 300}) // what was really used
	grant.Release(ctx, nil)

	// A scope: released afterwards, rolled back if the work returns an error.
	bucket.Take = weirgate.Amounts{"tpm": 100, "slots": 1}
	var answer string
	err = client.Scope(ctx, bucket, nil, func(grant *weirgate.Grant) error {
		answer = strings.ToUpper("how many?")
		_, err := grant.Adjust(ctx, weirgate.Amounts{"tpm": float64(len(answer))})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	balances, err := client.Peek(ctx, "openai", "gpt-4", nil)
	if err != nil {
		log.Fatal(err)
	}
	remaining, _ := balances.Remaining("tpm")
	fmt.Println(answer, remaining)
}
