package hs2_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestHandlesKeepTheirSecret from everything but MarshalText.
func TestHandlesKeepTheirSecret(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{})
	s := open(t, connect(t, srv.Addr(), hs2.Config{}))
	op, err := s.Execute(t.Context(), "INSERT", nil)
	require.NoError(t, err)
	for _, h := range []interface {
		fmt.Stringer
		MarshalText() ([]byte, error)
	}{s.Handle(), op.Handle()} {
		text, err := h.MarshalText()
		require.NoError(t, err)
		raw, err := base64.StdEncoding.DecodeString(string(text))
		require.NoError(t, err)
		guid := uuid.MustParse(h.String())
		at := bytes.Index(raw, guid[:])
		require.Positive(t, at)
		secret := raw[at+16+7 : at+16+7+16] // a field's head and length between them
		var out bytes.Buffer
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T%v"} {
			fmt.Fprintf(&out, format+"\n", h, h)
			fmt.Fprintf(&out, format+"\n", struct{ H any }{h}, []any{h})
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("handle", "h", h)
		slog.New(slog.NewTextHandler(&out, nil)).Info("handle", "h", h)
		require.Contains(t, out.String(), h.String())
		for _, form := range []string{string(text), fmt.Sprintf("%x", secret), fmt.Sprint(secret), uuid.UUID(secret).String(), base64.StdEncoding.EncodeToString(secret), string(secret)} {
			require.NotContains(t, out.String(), form)
		}
	}
}

// TestHandlesAreStoredAndRead as text, also inside JSON.
func TestHandlesAreStoredAndRead(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{})
	s := open(t, connect(t, srv.Addr(), hs2.Config{}))
	op, err := s.Execute(t.Context(), "INSERT", nil)
	require.NoError(t, err)
	type note struct {
		Session   hs2.SessionHandle
		Operation hs2.OperationHandle
	}
	b, err := json.Marshal(note{s.Handle(), op.Handle()})
	require.NoError(t, err)
	var back note
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, note{s.Handle(), op.Handle()}, back)
	require.False(t, back.Session.IsZero() || back.Operation.IsZero())
	require.True(t, (note{}).Session.IsZero() && (note{}).Operation.IsZero())

	text, err := op.Handle().MarshalText()
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		// Damaged in any way it is an error or a whole handle, and never a panic;
		// what was read before stays on an error.
		damaged := bytes.Clone(text)
		for range rapid.IntRange(1, 4).Draw(t, "damages") {
			damaged[rapid.IntRange(0, len(damaged)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		damaged = damaged[:rapid.IntRange(0, len(damaged)).Draw(t, "length")]
		h := op.Handle()
		if err := h.UnmarshalText(damaged); err != nil {
			if h != op.Handle() {
				t.Fatal("changed by a failure")
			}
			return
		}
		again, err := h.MarshalText()
		var read hs2.OperationHandle
		if err != nil || read.UnmarshalText(again) != nil || read != h {
			t.Fatalf("%s is read as %s", damaged, again)
		}
	})
	for _, bad := range []string{"", "*", "AAAA", string(text) + "AAAA", string(bytes.Repeat([]byte("A"), 5000))} {
		var h hs2.SessionHandle
		require.Error(t, h.UnmarshalText([]byte(bad)), "%.20q", bad)
	}
}
