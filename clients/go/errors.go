package sluice

import (
	"fmt"
	"io"
	"strings"
	"time"

	pb "sluicepb"

	"github.com/golang/protobuf/ptypes"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is an RPC that failed, with its google.rpc details; what the server did not say is empty.
type Error struct {
	Code       codes.Code
	Message    string
	Reason     string        // ErrorInfo: "QUEUE_FULL"
	Field      string        // BadRequest: "sampling.top_p"
	RetryAfter time.Duration // RetryInfo
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", CodeName(e.Code), e.Message) }

// CodeName is the name gRPC's specification gives the code: "INVALID_ARGUMENT".
func CodeName(code codes.Code) string {
	names := []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}
	if int(code) < len(names) {
		return names[code]
	}
	return fmt.Sprintf("CODE_%d", int(code))
}

// FromRPC makes an *Error of what a stub returned; nil and io.EOF stay as they are.
func FromRPC(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	s := status.Convert(err)
	e := &Error{Code: s.Code(), Message: s.Message()}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if !strings.EqualFold(d.Reason, CodeName(e.Code)) { // else it only repeats the code
				e.Reason = d.Reason
			}
		case *errdetails.BadRequest:
			if len(d.FieldViolations) > 0 {
				e.Field = d.FieldViolations[0].Field
			}
		case *errdetails.RetryInfo:
			e.RetryAfter, _ = ptypes.Duration(d.RetryDelay)
		}
	}
	return e
}

// FromFrame makes an *Error of the error frame of one request of a stream.
func FromFrame(frame *pb.Error) *Error {
	return &Error{Code: codes.Code(frame.Code), Message: frame.Message, Reason: frame.Reason, Field: frame.Field,
		RetryAfter: time.Duration(frame.RetryAfterMs) * time.Millisecond}
}
