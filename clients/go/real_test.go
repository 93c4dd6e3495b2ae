package weirgate_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weirgate"
)

var twoSlots = []weirgate.Limit{
	weirgate.Rate("tpm", 1, 365*24*time.Hour).WithBurst(1000), weirgate.Slots("slots", 2),
}

func bucketOf(entity string, take weirgate.Amounts) weirgate.Bucket {
	return weirgate.Bucket{Entity: entity, Resource: "api", Take: take, Limits: twoSlots}
}

// allSlots returns once all slots of an entity are free. Slots that nothing gives back are held for longer.
func allSlots(t *testing.T, client *weirgate.Client, entity string) {
	t.Helper()
	grant, err := client.Acquire(background, bucketOf(entity, weirgate.Amounts{"slots": 2}), &weirgate.AcquireOptions{Wait: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := grant.RollBack(background); err != nil {
		t.Fatal(err)
	}
}

func TestAContextThatEndsKeepsNoSlot(t *testing.T) {
	backend := startBackend(t)
	agent := startAgent(t, backend.variables)
	client := newClient(t, weirgate.Options{URL: agent.url()})
	options := &weirgate.AcquireOptions{Wait: time.Minute}
	t.Run("while it releases", func(t *testing.T) {
		for after := time.Duration(-1); after < 2*time.Millisecond; after += 50 * time.Microsecond {
			grant, err := client.Acquire(background, bucketOf("a", weirgate.Amounts{"slots": 2}), options)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(background, after)
			if _, err := grant.Release(ctx, nil); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		allSlots(t, client, "a")
	})
	t.Run("while it acquires", func(t *testing.T) {
		isGranted, isGivenUp := false, false
		for after := time.Duration(-1); after < 20*time.Millisecond; after += 250 * time.Microsecond {
			ctx, cancel := context.WithTimeout(background, after)
			grant, err := client.Acquire(ctx, bucketOf("b", weirgate.Amounts{"slots": 2}), options)
			cancel()
			switch {
			case err == nil:
				isGranted = true
				if _, err := grant.Release(background, nil); err != nil {
					t.Error(err)
				}
			case errors.Is(err, context.DeadlineExceeded):
				isGivenUp = true
			default:
				t.Error(err)
			}
		}
		if !isGranted || !isGivenUp {
			t.Errorf("granted %v, given up %v", isGranted, isGivenUp)
		}
		allSlots(t, client, "b")
	})
	t.Run("while it waits", func(t *testing.T) {
		held, err := client.Acquire(background, bucketOf("c", weirgate.Amounts{"slots": 2}), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(background)
		waiting := make(chan error)
		go func() {
			_, err := client.Acquire(ctx, bucketOf("c", weirgate.Amounts{"slots": 2}), options)
			waiting <- err
		}()
		for agent.inFlight() == "0" {
		}
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		client.Close()
		if _, err := held.Release(background, nil); err != nil {
			t.Error(err)
		}
		allSlots(t, client, "c")
	})
}

func TestAnAgentIsReachedByASocketAndItsSecret(t *testing.T) {
	backend := startBackend(t)
	folder, err := os.MkdirTemp("", "weirgate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	socket := folder + "/agent.sock"
	startAgent(t, backend.with("WEIRGATE_AGENT_UNIX_SOCKET", socket, "WEIRGATE_AGENT_TOKEN", "s3cret"))
	client := newClient(t, weirgate.Options{URL: "unix:" + socket, Token: "s3cret"})
	grant, err := client.Acquire(background, bucketOf("a", weirgate.Amounts{"tpm": 5}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if left, is := grant.Remaining("tpm"); !is || left != 995 {
		t.Error(left, is)
	}
	if _, err := newClient(t, weirgate.Options{URL: "unix:" + socket, Token: "another"}).Limits(background, "a", "b"); !errors.Is(err, weirgate.ErrUnauthorized) {
		t.Error(err)
	}
}

func TestTheProgramOfTheGuidePrintsWhatRemains(t *testing.T) {
	backend := startBackend(t)
	agent := startAgent(t, backend.variables)
	program := exec.Command("go", "run", "./examples/calls")
	program.Env = append(os.Environ(), "WEIRGATE_AGENT_URL="+agent.url())
	var errors bytes.Buffer
	program.Stderr = &errors
	said, err := program.Output()
	if err != nil {
		t.Fatal(err, errors.String())
	}
	if text := string(said); text != "HOW MANY? 691\n" || strings.Contains(errors.String(), "weirgate") {
		t.Errorf("%q %q", text, errors.String())
	}
}
