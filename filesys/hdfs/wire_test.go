package hdfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// frame builds a request as the library does: three messages behind lengths.
func frame(callID int32, method string, body []byte) []byte {
	head := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), protowire.EncodeZigZag(int64(callID)))
	head = protowire.AppendString(protowire.AppendTag(head, 4, protowire.BytesType), "0123456789abcdef")
	call := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), method)
	var b []byte
	for _, part := range [][]byte{head, call, body} {
		b = protowire.AppendBytes(b, part)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func renameBody(flag ...uint64) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "/from")
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), "/to")
	for _, f := range flag {
		b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), f)
	}
	return b
}

// TestTheOverwriteFlagIsClearedOrNothingIsSent: whatever a rename looks like,
// it does not go out with its flag set.
func TestTheOverwriteFlagIsClearedOrNothingIsSent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body []byte
		ok   bool
	}{
		"set":               {renameBody(1), true},
		"not set":           {renameBody(0), true},
		"absent":            {renameBody(), false},
		"twice":             {renameBody(1, 1), false},
		"a large number":    {renameBody(300), false},
		"of another type":   {append(renameBody(), protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "\x01")...), false},
		"cut":               {renameBody(1)[:13], false},
		"followed by trash": {append(renameBody(1), 0xff), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := frame(7, "rename2", c.body)
			r, err := parseRequest(f)
			if err != nil || r.method != "rename2" || r.callID != 7 {
				t.Fatalf("%+v %v", r, err)
			}
			err = clearOverwrite(r)
			if (err == nil) != c.ok {
				t.Fatalf("cleared: %v", err)
			}
			if !c.ok {
				if !errors.Is(err, errFrame) {
					t.Fatal(err)
				}
				return
			}
			if want := frame(7, "rename2", renameBody(0)); !bytes.Equal(f, want) {
				t.Fatalf("%x, want %x", f, want)
			}
		})
	}
}

func TestAListingStartsAfterAName(t *testing.T) {
	t.Parallel()
	body := func(after string) []byte {
		b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "/dir")
		b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), after)
		return protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), 0)
	}
	for given, want := range map[string]string{"": "here", "later": "later"} {
		f := frame(-5, "getListing", body(given))
		r, err := parseRequest(f)
		if err != nil {
			t.Fatal(err)
		}
		out, err := startAfter(f, r, "here")
		if err != nil {
			t.Fatal(err)
		}
		r, err = parseRequest(out)
		if err != nil || r.callID != -5 || r.method != "getListing" {
			t.Fatalf("%+v %v", r, err)
		}
		if got, _ := bytesField(r.body, 2); string(got) != want {
			t.Errorf("after %q: %q, want %q", given, got, want)
		}
		if dir, _ := bytesField(r.body, 1); string(dir) != "/dir" {
			t.Errorf("the directory became %q", dir)
		}
	}
}

// FuzzFrames: what comes over the wire never makes a parser panic, and what is
// built is read back.
func FuzzFrames(f *testing.F) {
	f.Add(frame(1, "rename2", renameBody(1)))
	f.Add(emptyAnswer(1)[4:])
	f.Add(directoryAnswer(1)[4:])
	f.Add([]byte{0, 0, 0, 1, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRequest(bytes.Clone(b)); err == nil {
			_, _ = startAfter(b, r, "x") // may refuse
			if other, err := replaceCall(r, b, substitute{method: "checkAccess", params: []byte{0x10, 3}}); err == nil {
				path, _ := bytesField(r.body, fieldSource)
				o, err := parseRequest(other)
				if err != nil || o.method != "checkAccess" || o.callID != r.callID {
					t.Fatalf("%+v %v", o, err)
				}
				if p, ok := bytesField(o.body, fieldSource); !ok || !bytes.Equal(p, path) {
					t.Fatalf("the path is %q and was %q", p, path)
				}
			}
			if err := clearOverwrite(r); err == nil {
				if v, ok := varintField(r.body, fieldOverwrite); !ok || v != 0 {
					t.Fatalf("cleared, and is %d %v", v, ok)
				}
			}
		}
		parseAnswer(b)
		_, _ = answerBody(b) // may refuse
	})
}

func TestAnswersMadeHere(t *testing.T) {
	t.Parallel()
	for _, b := range [][]byte{emptyAnswer(77), directoryAnswer(77)} {
		if int(binary.BigEndian.Uint32(b)) != len(b)-4 {
			t.Fatal("the length is wrong")
		}
		if a, ok := parseAnswer(b[4:]); !ok || a.callID != 77 || a.status != 0 {
			t.Fatalf("%+v %v", a, ok)
		}
	}
}
