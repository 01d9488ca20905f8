// The package in use. Modes: one answer, many answers on one stream, a lost stream with reattach, cancel, deadline, a refused
// request.
// usage: example TARGET MODEL generate|many|lost|cancel|deadline|bad PROMPT [N]
// Variables, as for the CLI: SLUICE_TLS_CA, SLUICE_TLS_CLIENT_CERT, SLUICE_TLS_CLIENT_KEY, SLUICE_API_KEY.
// SLUICE_EXAMPLE_IDS=1 prints token ids instead of text.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice"
	pb "sluicepb"
)

const credit = 4

type example struct {
	client        *sluice.Client
	model, prompt string
	n             int
}

func (e *example) request(prompt string, maxTokens int) *pb.GenerateRequest {
	return &pb.GenerateRequest{Model: e.model, Prompt: &pb.GenerateRequest_Text{Text: prompt},
		Stopping: &pb.Stopping{XMaxTokens: &pb.Stopping_MaxTokens{MaxTokens: uint32(maxTokens)}}}
}

func join(ids []uint32) string {
	var text strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&text, "%d ", id)
	}
	return text.String()
}

func (e *example) generate(ctx context.Context, maxTokens, cancelAfter int) error {
	defer fmt.Println()
	request := e.request(e.prompt, maxTokens)
	_, hasDeadline := ctx.Deadline()
	if cancelAfter > 0 || hasDeadline { // the answer must not end before it is cut
		request.Stopping.XIgnoreEos = &pb.Stopping_IgnoreEos{IgnoreEos: true}
	}
	answer, err := e.client.Generate(ctx, request)
	if err != nil {
		return err
	}
	tokens := 0
	for {
		response, err := answer.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		part := response.GetTokens()
		if part == nil {
			continue
		}
		if os.Getenv("SLUICE_EXAMPLE_IDS") != "" {
			fmt.Print(join(part.Ids))
		} else {
			fmt.Print(part.Text)
		}
		if tokens += len(part.Ids); cancelAfter > 0 && tokens >= cancelAfter {
			answer.Cancel()
		}
	}
}

// many runs many requests on one stream. The first request gets some tokens of credit at a time; while it waits for credit, an
// update raises max_tokens to 24. The last request is cancelled.
func (e *example) many(ctx context.Context) error {
	stream, err := e.client.Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	last := fmt.Sprintf("r%d", e.n-1)
	for i := 0; i < e.n; i++ {
		request := e.request(fmt.Sprintf("%s %d", e.prompt, i), 24)
		request.RequestId = fmt.Sprintf("r%d", i)
		if i == 0 {
			request.Stopping = e.request("", 2*credit).Stopping
			request.XCreditTokens = &pb.GenerateRequest_CreditTokens{CreditTokens: credit}
		} else if request.RequestId == last {
			request = e.request(request.GetText(), 512)
			request.RequestId = last
		}
		if err := stream.Start(request); err != nil {
			return err
		}
	}
	ids, ended := map[string][]uint32{}, map[string]bool{}
	for {
		frame, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		name, outcome := frame.RequestId, ""
		if ended[name] {
			continue // credit sent after the end of a request gets NOT_FOUND
		}
		switch f := frame.Frame.(type) {
		case *pb.GenerateStreamResponse_Tokens:
			ids[name] = append(ids[name], f.Tokens.Ids...)
			if name == "r0" {
				stream.Update(name, &pb.UpdateFrame{XMaxTokens: &pb.UpdateFrame_MaxTokens{MaxTokens: 24}})
				stream.Credit(name, uint32(len(f.Tokens.Ids)))
			} else if name == last {
				stream.Cancel(name)
			}
		case *pb.GenerateStreamResponse_Finished:
			outcome = "ok"
		case *pb.GenerateStreamResponse_Error:
			if !frame.GoesOn {
				outcome = sluice.CodeName(sluice.FromFrame(f.Error).Code)
			}
		}
		if outcome == "" {
			continue
		}
		fmt.Println(strings.TrimSpace(name + " " + outcome + " " + join(ids[name])))
		if ended[name] = true; len(ended) == e.n {
			stream.Finish()
		}
	}
}

// take appends token ids until the end, or until there are enough (0: until the end).
func take(stream *sluice.Stream, ids []uint32, enough int) ([]uint32, error) {
	for enough == 0 || len(ids) < enough {
		frame, err := stream.Recv()
		if err != nil {
			return ids, err
		}
		switch f := frame.Frame.(type) {
		case *pb.GenerateStreamResponse_Tokens:
			ids = append(ids, f.Tokens.Ids...)
		case *pb.GenerateStreamResponse_Finished:
			return ids, nil
		case *pb.GenerateStreamResponse_Error:
			return ids, sluice.FromFrame(f.Error)
		}
	}
	return ids, nil
}

// lost closes the first stream after three tokens; the second stream gets the rest.
func (e *example) lost(ctx context.Context) error {
	request := e.request(e.prompt, e.n)
	request.RequestId, request.ReattachWindowMs = "lost", 10000
	stream, err := e.client.Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := stream.Start(request); err != nil {
		return err
	}
	ids, err := take(stream, nil, 3)
	if err != nil {
		return err
	}
	stream.Close()
	again, err := e.client.Stream(ctx)
	if err != nil {
		return err
	}
	defer again.Close()
	if err := again.Reattach("lost", map[uint32]uint32{0: uint32(len(ids))}); err != nil {
		return err
	}
	if ids, err = take(again, ids, 0); err != nil {
		return err
	}
	fmt.Println(strings.TrimSpace(join(ids)))
	return nil
}

func (e *example) run(mode string) error {
	ctx := context.Background()
	switch mode {
	case "generate":
		return e.generate(ctx, e.n, 0)
	case "many":
		return e.many(ctx)
	case "lost":
		return e.lost(ctx)
	case "cancel":
		return e.generate(ctx, e.n, 3)
	case "deadline":
		ctx, cancel := context.WithTimeout(ctx, time.Duration(e.n)*time.Millisecond)
		defer cancel()
		return e.generate(ctx, 1500, 0)
	case "bad":
		request := e.request(e.prompt, e.n)
		request.Sampling = &pb.Sampling{XTemperature: &pb.Sampling_Temperature{Temperature: -1}}
		_, err := e.client.Complete(ctx, request)
		return err
	}
	return errors.New("no such mode: " + mode)
}

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: example TARGET MODEL generate|many|lost|cancel|deadline|bad PROMPT [N]")
		os.Exit(2)
	}
	client, err := sluice.Open(os.Args[1], sluice.Options{TLSCA: os.Getenv("SLUICE_TLS_CA"),
		TLSClientCert: os.Getenv("SLUICE_TLS_CLIENT_CERT"), TLSClientKey: os.Getenv("SLUICE_TLS_CLIENT_KEY"),
		APIKey: os.Getenv("SLUICE_API_KEY")})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer client.Close()
	e := example{client: client, model: os.Args[2], prompt: os.Args[4], n: 32}
	if len(os.Args) > 5 {
		if e.n, err = strconv.Atoi(os.Args[5]); err != nil || e.n < 1 {
			fmt.Fprintln(os.Stderr, "N: give a whole number from 1")
			os.Exit(2)
		}
	}
	if err := e.run(os.Args[3]); err != nil {
		var failed *sluice.Error
		if !errors.As(err, &failed) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(strings.Join(strings.Fields(sluice.CodeName(failed.Code)+" "+failed.Field+" "+failed.Reason), " "))
		fmt.Fprintln(os.Stderr, failed.Message)
		os.Exit(int(failed.Code))
	}
}
