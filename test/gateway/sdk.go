// test/gateway/sdk.go URL: the official Go SDK, unchanged, against the gateway at URL: each call of its client, and its
// worker. Prints TAP. test/gateway/sdks builds and runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	ojs "github.com/openjobspec/ojs-go-sdk"
)

var (
	ctx = context.Background()
	n   int
)

func ok(passed bool, what string, have ...any) {
	n++
	if passed {
		fmt.Printf("ok %d - Go: %s\n", n, what)
	} else {
		fmt.Printf("not ok %d - Go: %s\n# have %v\n", n, what, have)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Printf("Bail out! %v\n", err)
		os.Exit(1)
	}
	return value
}

func eventually(holds func() bool) bool {
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return false
}

type email struct {
	To string `json:"to"`
}

func main() {
	client := must(ojs.NewClient(os.Args[1]))
	worked := ojs.WithQueue("worked")
	state := func(id string) ojs.JobState { return must(client.GetJob(ctx, id)).State }

	job := must(client.Enqueue(ctx, "email.send", ojs.Args{"to": "a@b"}, ojs.WithQueue("email"),
		ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 5, InitialInterval: time.Second}), ojs.WithPriority(2),
		ojs.WithTags("x"), ojs.WithMeta(map[string]any{"trace": "t"}), ojs.WithTimeout(time.Minute),
		ojs.WithDelay(5*time.Minute), ojs.WithExpiresAt(time.Now().Add(time.Hour))))
	ok(job.State == ojs.JobStateScheduled && job.MaxAttempts == 5 && job.TimeoutMS == 60000 &&
		job.Args["to"] == "a@b", "a job with options", job)
	must(client.CancelJob(ctx, job.ID))
	_, err := client.CancelJob(ctx, job.ID)
	ok(state(job.ID) == ojs.JobStateCancelled && errors.Is(err, ojs.ErrConflict), "cancelled, once", err)
	_, err = client.GetJob(ctx, "019539a4-0000-7000-8000-000000000000")
	ok(errors.Is(err, ojs.ErrNotFound), "no such job", err)
	unique := ojs.WithUnique(ojs.UniquePolicy{Key: []string{"to"}, Period: time.Hour})
	must(client.Enqueue(ctx, "email.once", ojs.Args{"to": "a@b"}, unique))
	_, err = client.Enqueue(ctx, "email.once", ojs.Args{"to": "a@b"}, unique)
	_, other := client.Enqueue(ctx, "email.once", ojs.Args{"to": "b@b"}, unique)
	ok(errors.Is(err, ojs.ErrDuplicate) && other == nil, "unique for a period", err, other)

	// The worker.
	var tries atomic.Int32
	worker := ojs.NewWorker(os.Args[1], ojs.WithQueues("worked"), ojs.WithConcurrency(4),
		ojs.WithPollInterval(50*time.Millisecond), ojs.WithHeartbeatInterval(time.Second))
	seen := make(chan string, 100)
	worker.Use(func(job ojs.JobContext, next ojs.HandlerFunc) error {
		err := next(job)
		seen <- job.Job.Type
		return err
	})
	ojs.RegisterTyped(worker, "typed", func(job ojs.JobContext, args email) error {
		job.SetResult(map[string]any{"to": args.To})
		return job.Heartbeat()
	})
	worker.Register("flaky", func(ojs.JobContext) error {
		if tries.Add(1) == 1 {
			return errors.New("once")
		}
		return nil
	})
	worker.Register("broken", func(ojs.JobContext) error { return ojs.NonRetryable(errors.New("for good")) })
	running, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- worker.Start(running) }()

	batch := must(client.EnqueueBatch(ctx, []ojs.JobRequest{
		{Type: "typed", Args: ojs.Args{"to": "c@d"}, Options: []ojs.EnqueueOption{worked}},
		{Type: "flaky", Options: []ojs.EnqueueOption{worked,
			ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 2, InitialInterval: time.Millisecond})}},
		{Type: "broken", Options: []ojs.EnqueueOption{worked}}}))
	for i, want := range []ojs.JobState{ojs.JobStateCompleted, ojs.JobStateCompleted, ojs.JobStateDiscarded} {
		id := batch[i].ID
		ok(eventually(func() bool { return state(id) == want }), "a batch is worked off: "+batch[i].Type, state(id))
	}
	ok(must(client.GetJob(ctx, batch[0].ID)).Result["to"] == "c@d", "the result")
	ok(eventually(func() bool { return len(seen) >= 4 }), "middleware sees each attempt", len(seen))

	chain := must(client.CreateWorkflow(ctx, ojs.Chain(ojs.Step{Type: "typed", Args: ojs.Args{"to": "1"}},
		ojs.Step{Type: "typed", Args: ojs.Args{"to": "2"}}), worked))
	ok(eventually(func() bool { return must(client.GetWorkflow(ctx, chain.ID)).State == "completed" }), "a chain ends",
		must(client.GetWorkflow(ctx, chain.ID)))
	group := must(client.CreateWorkflow(ctx, ojs.Group(ojs.Step{Type: "typed"}, ojs.Step{Type: "typed"}),
		ojs.WithQueue("unworked")))
	must(client.CancelWorkflow(ctx, group.ID))
	ok(must(client.GetWorkflow(ctx, group.ID)).State == "cancelled", "a group is cancelled")
	stop()
	ok(<-ended == nil, "the worker stops")

	// The rest.
	ok(must(client.Health(ctx)).Status == "ok", "health")
	must(0, client.PauseQueue(ctx, "worked"))
	queues, _, err := client.ListQueues(ctx)
	paused := false
	for _, queue := range queues {
		paused = paused || queue.Name == "worked" && queue.Status == "paused"
	}
	ok(err == nil && paused, "a queue is paused, and listed", queues, err)
	must(0, client.ResumeQueue(ctx, "worked"))
	cron := must(client.RegisterCronJob(ctx, ojs.CronJobRequest{Name: "go", Cron: "0 3 * * *", Type: "typed",
		Args: ojs.Args{"to": "x"}}))
	crons := must(client.ListCronJobs(ctx))
	ok(cron.Name == "go" && len(crons) == 1, "cron", crons)
	must(0, client.UnregisterCronJob(ctx, "go"))
	schema := must(client.RegisterSchema(ctx, ojs.SchemaDefinition{URI: "urn:ojs:schema:go:1.0.0", Type: "go.typed",
		Version: "1.0.0", Schema: json.RawMessage(`{"type": "array"}`)}))
	detail := must(client.GetSchema(ctx, schema.URI))
	ok(detail.URI == schema.URI && len(detail.Schema) > 0, "a schema", detail)
	must(0, client.DeleteSchema(ctx, schema.URI))
	letters, _, err := client.ListDeadLetterJobs(ctx, "worked", 10, 0)
	ok(err == nil && len(letters) == 0, "dead letters, of which there are none: no policy asks for them", letters, err)

	// What the SDK and the official cases see differently (docs/how-to/gateway.md).
	_, err = client.Manifest(ctx)
	ok(err != nil, "the manifest has objects where the SDK wants lists", err)
	_, err = client.GetQueueStats(ctx, "worked")
	ok(err != nil, "statistics have an object where the SDK wants a name", err)
	fmt.Printf("1..%d\n", n)
}
