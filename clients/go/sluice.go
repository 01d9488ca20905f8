// Package sluice is a client of a sluice-server: a thin layer over the stubs in package sluicepb. It adds a retry policy, TLS,
// API keys and decoded errors. A Client may be used from any goroutine.
package sluice

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/ioutil"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	pb "sluicepb"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

const maxMessageBytes = 64 << 20

// Options describe how to reach the server. The zero value means plain text without a key.
type Options struct {
	TLS                         bool   // implied by TLSCA
	TLSCA                       string // PEM file; empty: the system's CAs
	TLSClientCert, TLSClientKey string // PEM files, both or neither
	ServerName                  string // name in the server's certificate; empty: the target's host
	APIKey                      string // sent over TLS or to this machine only
	AllowPlaintextKeys          bool   // allow APIKey without TLS
	ServiceConfig               string // JSON; empty: pb.ServiceConfig; "{}": no retries
	DialOptions                 []grpc.DialOption
}

// Client is a channel to one server. Its RPC field has every method of the stubs.
type Client struct {
	RPC  pb.InferenceClient
	conn *grpc.ClientConn
}

// Open creates a client. The first call connects.
func Open(target string, options Options) (*Client, error) {
	secure := options.TLS || options.TLSCA != ""
	if options.APIKey != "" && !secure && !options.AllowPlaintextKeys && !isLocal(target) {
		return nil, fmt.Errorf("%s: the API key would cross the network in plain text; give TLSCA or TLS", target)
	}
	config := options.ServiceConfig
	if config == "" {
		config = pb.ServiceConfig
	}
	policies, err := parseServiceConfig(config)
	if err != nil {
		return nil, err
	}
	dial := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithUnaryInterceptor(policies.unary),
		grpc.WithStreamInterceptor(policies.stream),
	}
	if secure {
		tlsConfig, err := options.tlsConfig()
		if err != nil {
			return nil, err
		}
		dial = append(dial, grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig)))
	} else {
		dial = append(dial, grpc.WithInsecure())
	}
	if isLocal(target) { // https_proxy applies to other machines only
		dial = append(dial, grpc.WithNoProxy())
	}
	if options.APIKey != "" {
		dial = append(dial, grpc.WithPerRPCCredentials(apiKey(options.APIKey)))
	}
	conn, err := grpc.Dial(grpcTarget(target), append(dial, options.DialOptions...)...)
	if err != nil {
		return nil, err
	}
	return &Client{RPC: pb.NewInferenceClient(conn), conn: conn}, nil
}

// Close cancels running calls.
func (c *Client) Close() error { return c.conn.Close() }

func (o Options) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{ServerName: o.ServerName, MinVersion: tls.VersionTLS12}
	if o.TLSCA != "" {
		pem, err := ioutil.ReadFile(o.TLSCA)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in it", o.TLSCA)
		}
	}
	if o.TLSClientCert != "" {
		pair, err := tls.LoadX509KeyPair(o.TLSClientCert, o.TLSClientKey)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// grpcTarget returns gRPC's form of the target. gRPC parses the text after "unix:" as a URI; callers give a path.
func grpcTarget(target string) string {
	if !strings.HasPrefix(target, "unix:/") {
		return target
	}
	path := url.URL{Path: strings.TrimPrefix(target, "unix:")}
	return "unix:" + path.EscapedPath()
}

func isLocal(target string) bool {
	if strings.HasPrefix(target, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(target[strings.LastIndex(target, "/")+1:])
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

type apiKey string

func (k apiKey) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(k)}, nil
}

// RequireTransportSecurity returns false, because Open has checked the transport already.
func (apiKey) RequireTransportSecurity() bool { return false }

// Answer is a streamed generation.
type Answer struct {
	call   pb.Inference_GenerateClient
	cancel context.CancelFunc
}

// Generate starts a generation. A deadline comes with ctx. Call Recv until the end, or Cancel.
func (c *Client) Generate(ctx context.Context, request *pb.GenerateRequest) (*Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	call, err := c.RPC.Generate(ctx, request)
	if err != nil {
		cancel()
		return nil, FromRPC(err)
	}
	return &Answer{call, cancel}, nil
}

// Recv waits for the next message. It returns io.EOF after the last message, and an *Error on failure.
func (a *Answer) Recv() (*pb.GenerateResponse, error) {
	response, err := a.call.Recv()
	if err != nil {
		a.cancel()
		return nil, FromRPC(err)
	}
	return response, nil
}

// Cancel ends the generation: Recv returns an *Error with code Canceled. Any goroutine may call Cancel.
func (a *Answer) Cancel() { a.cancel() }

// Complete returns a whole answer at once.
func (c *Client) Complete(ctx context.Context, request *pb.GenerateRequest) (*pb.CompleteResponse, error) {
	response, err := c.RPC.Complete(ctx, request)
	return response, FromRPC(err)
}

// Stream carries many generations on one GenerateStream call. Any goroutine may send frames; a single goroutine receives. The
// error of a request is a frame. Requests that are lost with their connection are not repeated.
type Stream struct {
	call   pb.Inference_GenerateStreamClient
	cancel context.CancelFunc
	sends  sync.Mutex
}

// Stream opens the call. Close the stream at the end.
func (c *Client) Stream(ctx context.Context) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	call, err := c.RPC.GenerateStream(ctx)
	if err != nil {
		cancel()
		return nil, FromRPC(err)
	}
	return &Stream{call: call, cancel: cancel}, nil
}

// Send sends any frame.
func (s *Stream) Send(frame *pb.GenerateStreamRequest) error {
	s.sends.Lock()
	defer s.sends.Unlock()
	return FromRPC(s.call.Send(frame))
}

// Start starts a request. Later frames refer to its request_id.
func (s *Stream) Start(request *pb.GenerateRequest) error {
	return s.Send(&pb.GenerateStreamRequest{RequestId: request.RequestId,
		Frame: &pb.GenerateStreamRequest_Start{Start: request}})
}

// Cancel ends a request.
func (s *Stream) Cancel(requestID string) error {
	return s.Send(&pb.GenerateStreamRequest{RequestId: requestID,
		Frame: &pb.GenerateStreamRequest_Cancel{Cancel: &pb.CancelFrame{}}})
}

// Credit allows a request that was started with credit_tokens to send more tokens.
func (s *Stream) Credit(requestID string, tokens uint32) error {
	return s.Send(&pb.GenerateStreamRequest{RequestId: requestID,
		Frame: &pb.GenerateStreamRequest_Credit{Credit: &pb.CreditFrame{NTokens: tokens}}})
}

// Pause stops a request's decoding.
func (s *Stream) Pause(requestID string) error {
	return s.Send(&pb.GenerateStreamRequest{RequestId: requestID,
		Frame: &pb.GenerateStreamRequest_Pause{Pause: &pb.PauseFrame{}}})
}

// Resume continues a request after Pause.
func (s *Stream) Resume(requestID string) error {
	return s.Send(&pb.GenerateStreamRequest{RequestId: requestID,
		Frame: &pb.GenerateStreamRequest_Resume{Resume: &pb.ResumeFrame{}}})
}

// Update changes a running request. A refused update is an error frame with goes_on: the request continues unchanged.
func (s *Stream) Update(requestID string, update *pb.UpdateFrame) error {
	return s.Send(&pb.GenerateStreamRequest{RequestId: requestID,
		Frame: &pb.GenerateStreamRequest_Update{Update: update}})
}

// Reattach continues a request that was started with reattach_window_ms, on this or on a lost stream. `received` maps each
// choice to the number of tokens that the client has. The stream continues after these tokens.
func (s *Stream) Reattach(requestID string, received map[uint32]uint32) error {
	frame := &pb.ReattachFrame{}
	for choice, n := range received {
		frame.Received = append(frame.Received, &pb.ReceivedTokens{Choice: choice, NTokens: n})
	}
	return s.Send(&pb.GenerateStreamRequest{RequestId: requestID,
		Frame: &pb.GenerateStreamRequest_Reattach{Reattach: frame}})
}

// Recv waits for the next frame. It returns io.EOF after the last frame, and an *Error on failure.
func (s *Stream) Recv() (*pb.GenerateStreamResponse, error) {
	frame, err := s.call.Recv()
	if err != nil {
		return nil, FromRPC(err)
	}
	return frame, nil
}

// Finish sends no more frames. The stream ends after the last answer.
func (s *Stream) Finish() error {
	s.sends.Lock()
	defer s.sends.Unlock()
	return FromRPC(s.call.CloseSend())
}

// Close cancels all running requests.
func (s *Stream) Close() { s.cancel() }
