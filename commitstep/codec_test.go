package commitstep_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
)

// The bytes on disk, computed by another implementation of CRC-32C. A change
// here is a new format version.
func TestEnvelopeBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		t            commitstep.RecordType
		key, payload string
		want         string
	}{
		{commitstep.RecordWatermark, "k1", `{"a":1}`, "435377013906ce477b2261223a317d"},
		{commitstep.RecordHeader, "", "", "43536801c0624c80"},
	} {
		got := commitstep.Seal(c.t, []byte(c.key), []byte(c.payload))
		if hex.EncodeToString(got) != c.want {
			t.Errorf("%c %q %q is sealed as %x, want %s", c.t, c.key, c.payload, got, c.want)
		}
		payload, err := commitstep.Open(c.t, []byte(c.key), got)
		if err != nil || string(payload) != c.payload {
			t.Errorf("opened as %q, %v", payload, err)
		}
	}
}

// Every value of every byte but the right one, the version byte included: a
// flipped bit must never make an old program believe in a newer format, since
// that record would be left pending instead of quarantined.
func TestEveryFlippedByteIsDamage(t *testing.T) {
	t.Parallel()
	key := []byte("key")
	good := commitstep.Seal(commitstep.RecordPage, key, []byte(`{"steps":[{"kind":"fs.rename"}]}`))
	for i := range good {
		for x := 1; x < 256; x++ {
			bad := bytes.Clone(good)
			bad[i] ^= byte(x)
			requireDamage(t, commitstep.RecordPage, key, bad)
		}
	}
	for i := range good {
		requireDamage(t, commitstep.RecordPage, key, good[:i])
	}
	for x := range 256 {
		requireDamage(t, commitstep.RecordPage, key, append(bytes.Clone(good), byte(x)))
	}
}

func requireDamage(t *testing.T, typ commitstep.RecordType, key, record []byte) {
	t.Helper()
	payload, err := commitstep.Open(typ, key, record)
	if !errors.Is(err, commitstep.ErrDamaged) || errors.Is(err, commitstep.ErrNewerFormat) || !commitstep.IsDamage(err) || payload != nil {
		t.Fatalf("%x is opened as %q, %v", record, payload, err)
	}
	var fe *commitstep.FormatError
	if !errors.As(err, &fe) || fe.Version != 0 {
		t.Fatalf("%x: %v is no *FormatError without a version", record, err)
	}
}

func TestAnotherKeyIsDamage(t *testing.T) {
	t.Parallel()
	good := commitstep.Seal(commitstep.RecordLock, []byte("ab"), []byte("c"))
	for _, key := range []string{"", "a", "abc", "ba", "ab\x00"} {
		requireDamage(t, commitstep.RecordLock, []byte(key), good)
	}
	// The same bytes, cut between key and payload elsewhere.
	shifted := append(bytes.Clone(good[:8]), "bc"...)
	requireDamage(t, commitstep.RecordLock, []byte("a"), shifted)
}

func TestAnotherTypeIsDamage(t *testing.T) {
	t.Parallel()
	types := []commitstep.RecordType{commitstep.RecordMeta, commitstep.RecordHeader, commitstep.RecordPage, commitstep.RecordCondition, commitstep.RecordProgress,
		commitstep.RecordLock, commitstep.RecordWatermark, commitstep.RecordPlanID, commitstep.RecordHistory, commitstep.RecordAudit}
	for i, a := range types {
		for j, b := range types {
			rec := commitstep.Seal(a, []byte("k"), nil)
			if i == j {
				if _, err := commitstep.Open(b, []byte("k"), rec); err != nil {
					t.Errorf("%c: %v", a, err)
				}
				continue
			}
			if a == b {
				t.Fatalf("two types share the letter %c", a)
			}
			requireDamage(t, b, []byte("k"), rec)
		}
	}
}

func TestNewerFormatIsNoDamage(t *testing.T) {
	t.Parallel()
	for v := commitstep.FormatVersion + 1; v < 256; v++ {
		rec := commitstep.SealVersion(commitstep.RecordHeader, byte(v), []byte("k"), []byte("{}"))
		payload, err := commitstep.Open(commitstep.RecordHeader, []byte("k"), rec)
		if !errors.Is(err, commitstep.ErrNewerFormat) || errors.Is(err, commitstep.ErrDamaged) || commitstep.IsDamage(err) || payload != nil {
			t.Fatalf("format %d is opened as %q, %v", v, payload, err)
		}
		var fe *commitstep.FormatError
		if !errors.As(err, &fe) || fe.Version != v {
			t.Fatalf("format %d: %v", v, err)
		}
	}
	rec := commitstep.SealVersion(commitstep.RecordHeader, 7, []byte("k"), nil)
	_, err := commitstep.Open(commitstep.RecordHeader, []byte("k"), rec)
	if !strings.Contains(err.Error(), "format 7") || !strings.Contains(err.Error(), "up to 1") {
		t.Errorf("%q does not name both versions", err)
	}
	requireDamage(t, commitstep.RecordHeader, []byte("k"), commitstep.SealVersion(commitstep.RecordHeader, 0, []byte("k"), nil))
}

func FuzzOpen(f *testing.F) {
	f.Add(byte('h'), []byte("k"), commitstep.Seal(commitstep.RecordHeader, []byte("k"), []byte("{}")))
	f.Add(byte('h'), []byte("k"), commitstep.SealVersion(commitstep.RecordHeader, 2, []byte("k"), []byte("{}")))
	f.Add(byte('m'), []byte{}, []byte("CSm\x01"))
	f.Add(byte(0), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, typ byte, key, record []byte) {
		payload, err := commitstep.Open(commitstep.RecordType(typ), key, record)
		if err == nil {
			if again := commitstep.Seal(commitstep.RecordType(typ), key, payload); !bytes.Equal(again, record) {
				t.Fatalf("%x is accepted, and sealed again as %x", record, again)
			}
			return
		}
		if errors.Is(err, commitstep.ErrDamaged) == errors.Is(err, commitstep.ErrNewerFormat) {
			t.Fatalf("%v is not exactly one of damaged and newer", err)
		}
	})
}
