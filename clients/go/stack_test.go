package weirgate_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const contract = "../contract/"

// A backend is the real `weirgate local` with the limits of the contract. `make clients` builds it.
type backend struct {
	process   *exec.Cmd
	variables map[string]string
}

func startBackend(t testing.TB) *backend {
	t.Helper()
	process := exec.Command(binary(t, "WEIRGATE_BIN"), "--json", "local", "--port", "0", "--limits", contract+"limits.yaml")
	output := started(t, process)
	var said struct{ Variables map[string]string }
	if err := json.NewDecoder(output).Decode(&said); err != nil {
		t.Fatalf("weirgate local ended before it was ready: %v", err)
	}
	go io.Copy(io.Discard, output)
	return &backend{process, said.Variables}
}

// with returns the variables and others.
func (b *backend) with(more ...string) map[string]string { return with(b.variables, more...) }

func with(variables map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	for name, value := range variables {
		all[name] = value
	}
	for at := 0; at < len(more); at += 2 {
		all[more[at]] = more[at+1]
	}
	return all
}

// withoutDatabase has the variables of a database that nothing serves.
var withoutDatabase = map[string]string{
	"WEIRGATE_TABLE":            "weirgate",
	"AWS_REGION":                "us-east-1",
	"AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:1",
	"AWS_ACCESS_KEY_ID":         "local",
	"AWS_SECRET_ACCESS_KEY":     "local",
}

// An agent is the real one, on a port that stays the same over restarts.
type agent struct {
	t         testing.TB
	variables map[string]string
	port      string
	process   *exec.Cmd
}

func startAgent(t testing.TB, variables map[string]string) *agent {
	t.Helper()
	a := &agent{t: t, variables: variables, port: "0"}
	a.start()
	return a
}

func (a *agent) url() string { return "http://127.0.0.1:" + a.port }

func (a *agent) start() {
	a.t.Helper()
	a.process = exec.Command(binary(a.t, "WEIRGATE_AGENT_BIN"), "--listen", "127.0.0.1:"+a.port)
	a.process.Env = os.Environ()
	for name, value := range a.variables {
		a.process.Env = append(a.process.Env, name+"="+value)
	}
	lines := bufio.NewReader(started(a.t, a.process))
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			a.t.Fatalf("the agent ended before it listened: %v", err)
		}
		var said struct{ Message, Address string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Message == "listening" {
			a.port = said.Address[strings.LastIndex(said.Address, ":")+1:]
			break
		}
	}
	// So that the agent never waits for a reader of its log.
	go io.Copy(io.Discard, lines)
}

func (a *agent) stop() { stop(a.process) }

func (a *agent) restart() {
	a.stop()
	a.start()
}

// inFlight returns the number of requests that the agent works on.
func (a *agent) inFlight() string {
	response, err := http.Get(a.url() + "/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^weirgate_agent_in_flight (\d+)`).FindStringSubmatch(string(text))[1]
}

func binary(t testing.TB, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatal(variable + " must be the path of a binary: run `make clients`")
	}
	return path
}

// started starts a process that ends with the test at the latest, and returns its output.
func started(t testing.TB, process *exec.Cmd) io.Reader {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	process.Stdout = write
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	t.Cleanup(func() {
		stop(process)
		read.Close()
	})
	return read
}

func stop(process *exec.Cmd) {
	if process.ProcessState == nil {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	}
}

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", path, err))
	}
}
