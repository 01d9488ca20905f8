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

// Error is an RPC that failed, with its google.rpc details. Details that the server did not send are empty.
type Error struct {
	Code       codes.Code
	Message    string
	Reason     string        // ErrorInfo: "QUEUE_FULL"
	Field      string        // BadRequest: "sampling.top_p"
	RetryAfter time.Duration // RetryInfo
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", CodeName(e.Code), e.Message) }

// CodeName returns the code's name in gRPC's specification: "INVALID_ARGUMENT".
func CodeName(code codes.Code) string {
	names := []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}
	if int(code) < len(names) {
		return names[code]
	}
	return fmt.Sprintf("CODE_%d", int(code))
}

// FromRPC converts an error of a stub to *Error. It returns nil and io.EOF unchanged.
func FromRPC(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	s := status.Convert(err)
	e := &Error{Code: s.Code(), Message: s.Message()}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if !strings.EqualFold(d.Reason, CodeName(e.Code)) { // a reason equal to the code adds nothing
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

// FromFrame converts the error frame of a request on a stream to *Error.
func FromFrame(frame *pb.Error) *Error {
	return &Error{Code: codes.Code(frame.Code), Message: frame.Message, Reason: frame.Reason, Field: frame.Field,
		RetryAfter: time.Duration(frame.RetryAfterMs) * time.Millisecond}
}
