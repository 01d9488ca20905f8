package sluice

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// grpc-go before 1.40 ignores the retry policy of a service config by default. This file implements the policy after gRPC's
// proposal A6. A call is repeated while no part of its answer has come. The server's pushback overrides the backoff. A token
// bucket stops the repetition when most calls fail.

type retryPolicy struct {
	maxAttempts      int
	initial, longest time.Duration
	multiplier       float64
	codes            map[codes.Code]bool
}

type policies struct {
	byName map[string]*retryPolicy // "service/method" or "service/"

	lock              sync.Mutex
	tokens, maxTokens float64 // maxTokens 0: no throttling
	ratio             float64
}

type serviceConfig struct {
	MethodConfig []struct {
		Name []struct {
			Service, Method string
		}
		RetryPolicy *struct {
			MaxAttempts                int
			InitialBackoff, MaxBackoff string
			BackoffMultiplier          float64
			RetryableStatusCodes       []string
		}
	}
	RetryThrottling struct {
		MaxTokens, TokenRatio float64
	}
}

func codeByName(name string) (codes.Code, bool) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if CodeName(code) == name {
			return code, true
		}
	}
	return codes.Unknown, false
}

func parseServiceConfig(text string) (*policies, error) {
	var config serviceConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return nil, fmt.Errorf("service config: %v", err)
	}
	p := &policies{byName: map[string]*retryPolicy{}, tokens: config.RetryThrottling.MaxTokens,
		maxTokens: config.RetryThrottling.MaxTokens, ratio: config.RetryThrottling.TokenRatio}
	for _, method := range config.MethodConfig {
		var policy *retryPolicy
		if from := method.RetryPolicy; from != nil {
			policy = &retryPolicy{maxAttempts: from.MaxAttempts, multiplier: from.BackoffMultiplier,
				codes: map[codes.Code]bool{}}
			var err error
			if policy.initial, err = time.ParseDuration(from.InitialBackoff); err != nil {
				return nil, fmt.Errorf("service config: initialBackoff: %v", err)
			}
			if policy.longest, err = time.ParseDuration(from.MaxBackoff); err != nil {
				return nil, fmt.Errorf("service config: maxBackoff: %v", err)
			}
			for _, name := range from.RetryableStatusCodes {
				code, known := codeByName(name)
				if !known {
					return nil, fmt.Errorf("service config: %q is no status code", name)
				}
				policy.codes[code] = true
			}
		}
		for _, name := range method.Name {
			p.byName[name.Service+"/"+name.Method] = policy
		}
	}
	return p, nil
}

// find returns the policy for "/service/method", or nil.
func (p *policies) find(method string) *retryPolicy {
	name := strings.TrimPrefix(method, "/")
	if policy, found := p.byName[name]; found {
		return policy
	}
	return p.byName[name[:strings.LastIndex(name, "/")+1]]
}

func (p *policies) succeeded() {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.tokens += p.ratio; p.tokens > p.maxTokens {
		p.tokens = p.maxTokens
	}
}

func (p *policies) failed() (mayRepeat bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.tokens--; p.tokens < 0 {
		p.tokens = 0
	}
	return p.maxTokens == 0 || p.tokens > p.maxTokens/2
}

// jitter has its own seed: before Go 1.20 the default source gave every program the same numbers. All clients of a server
// that was away would return at the same time.
var jitter = struct {
	sync.Mutex
	*rand.Rand
}{Rand: rand.New(rand.NewSource(time.Now().UnixNano()))}

// jittered varies the time by up to a fifth, like gRPC's own retries. So retries take about as long in every language.
func jittered(wait float64) time.Duration {
	jitter.Lock()
	defer jitter.Unlock()
	return time.Duration(wait * (0.8 + 0.4*jitter.Float64()))
}

// attempts counts the attempts of a call.
type attempts struct {
	policies *policies
	policy   *retryPolicy
	n        int
}

// again waits until the call may be repeated. It returns false if the call may not be repeated.
func (a *attempts) again(ctx context.Context, err error, trailer metadata.MD) bool {
	a.n++
	if a.policy == nil || !a.policy.codes[status.Code(err)] || !a.policies.failed() || a.n >= a.policy.maxAttempts {
		return false
	}
	wait := float64(a.policy.initial)
	for i := 1; i < a.n; i++ {
		wait *= a.policy.multiplier
	}
	if wait > float64(a.policy.longest) {
		wait = float64(a.policy.longest)
	}
	delay := jittered(wait)
	if pushback := trailer.Get("grpc-retry-pushback-ms"); len(pushback) > 0 {
		ms, err := strconv.Atoi(pushback[0])
		if err != nil || ms < 0 {
			return false
		}
		delay = time.Duration(ms) * time.Millisecond
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *policies) unary(ctx context.Context, method string, request, reply interface{}, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	a := attempts{policies: p, policy: p.find(method)}
	for {
		var trailer metadata.MD
		err := invoke(ctx, method, request, reply, conn, append(options[:len(options):len(options)], grpc.Trailer(&trailer))...)
		if err == nil {
			p.succeeded()
			return nil
		}
		if !a.again(ctx, err, trailer) {
			return err
		}
	}
}

// repeatable is a server-streaming call that is repeated while no message has come.
type repeatable struct {
	grpc.ClientStream
	ctx      context.Context // the call's context; the context of a stream ends with the stream
	attempts attempts
	begin    func() (grpc.ClientStream, error)
	request  interface{}
	received bool
}

func (r *repeatable) SendMsg(message interface{}) error {
	r.request = message
	if err := r.ClientStream.SendMsg(message); err != nil && err != io.EOF { // after io.EOF RecvMsg returns the cause
		return err
	}
	return nil
}

func (r *repeatable) RecvMsg(message interface{}) error {
	for {
		err := r.ClientStream.RecvMsg(message)
		if err == nil && !r.received {
			r.received = true
			r.attempts.policies.succeeded()
		}
		if err == nil || err == io.EOF || r.received || !r.attempts.again(r.ctx, err, r.Trailer()) {
			return err
		}
		stream, err := r.begin()
		if err != nil {
			return err
		}
		r.ClientStream = stream
		if err := stream.SendMsg(r.request); err != nil && err != io.EOF {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
	}
}

func (p *policies) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	streamer grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	r := &repeatable{ctx: ctx, attempts: attempts{policies: p, policy: p.find(method)}}
	r.begin = func() (grpc.ClientStream, error) {
		for {
			stream, err := streamer(ctx, desc, conn, method, options...)
			if err == nil || !r.attempts.again(ctx, err, nil) {
				return stream, err
			}
		}
	}
	if desc.ClientStreams {
		return streamer(ctx, desc, conn, method, options...)
	}
	var err error
	r.ClientStream, err = r.begin()
	return r, err
}
