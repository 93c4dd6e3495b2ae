// Package weirgate acquires rate limits and concurrency limits by weirgate-agent.
//
//	client, err := weirgate.New(weirgate.Options{})
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//
//	bucket := weirgate.Bucket{Entity: "openai", Resource: "gpt-4", Take: weirgate.Amounts{"tpm": 1500, "slots": 1}}
//	err = client.Scope(ctx, bucket, nil, func(grant *weirgate.Grant) error {
//		used, err := askTheModel(ctx)
//		if err != nil {
//			return err // rolls back
//		}
//		_, err = grant.Adjust(ctx, weirgate.Amounts{"tpm": used})
//		return err
//	})
//
// # Contexts
//
// A context bounds a call. What an abandoned acquire took returns: the agent drops it, or if it has answered already, the
// client rolls back in the background. A settlement goes on, also that of [Client.Scope], and only the wait for its answer
// ends: a deferred [Grant.Release] gives its slot back also if the context is done. [Client.Close] waits for both.
//
// # Errors
//
// A decision that grants nothing is a [RefusedError], and [errors.Is] tells which one: [ErrDenied], [ErrNeverFits] or
// [ErrDisabled]. No decision is an [UnavailableError]: [ErrUnavailable], and as special cases [ErrMisconfigured] and
// [ErrNotConfigured]. A call that is wrong is [ErrInvalidRequest], [ErrUnauthorized] or [ErrNotAllowed]. An abandoned call
// has the error of its context.
//
// A call is repeated only if nothing of it can have been applied.
package weirgate
