package commitstep

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Every record is an envelope around a JSON payload; docs/formats.md has the
// layout. All integers are big endian:
//
//	offset 0  2 bytes  magic "CS"
//	       2  1 byte   record type
//	       3  1 byte   format version
//	       4  4 bytes  CRC-32C over bytes 0 to 3, the length of the key as 4
//	                   bytes, the key it is stored under, and the payload
//	       8           payload
const envelopeSize = 8

// FormatVersion is the newest envelope and payload format this code reads and
// the one it writes.
const FormatVersion = 1

// RecordType tells records of different meaning apart, so that one can never
// be read as another.
type RecordType byte

// Record types.
const (
	RecordMeta      RecordType = 'm'
	RecordHeader    RecordType = 'h'
	RecordPage      RecordType = 'p'
	RecordCondition RecordType = 'c'
	RecordProgress  RecordType = 'g'
	RecordLock      RecordType = 'l'
	RecordWatermark RecordType = 'w'
	RecordPlanID    RecordType = 'i'
	RecordHistory   RecordType = 'y'
	RecordAudit     RecordType = 'a'
	RecordPath      RecordType = 'u'
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func recordSum(head, key, payload []byte) uint32 {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(key)))
	c := crc32.Update(0, castagnoli, head[:4])
	c = crc32.Update(c, castagnoli, n[:])
	c = crc32.Update(c, castagnoli, key)
	return crc32.Update(c, castagnoli, payload)
}

// Seal wraps payload, which is to be stored under key.
func Seal(t RecordType, key, payload []byte) []byte {
	return SealVersion(t, FormatVersion, key, payload)
}

// EnvelopeSize is how many bytes of a record stand before its payload.
const EnvelopeSize = envelopeSize

// SealBuffer is Seal without a copy: record holds the payload from
// EnvelopeSize on, and the envelope is written into the bytes before it. It
// returns record.
func SealBuffer(t RecordType, key, record []byte) []byte {
	record[0], record[1], record[2], record[3] = 'C', 'S', byte(t), FormatVersion
	binary.BigEndian.PutUint32(record[4:], recordSum(record, key, record[envelopeSize:]))
	return record
}

// SealVersion is Seal with another format version; for tests of upgrades.
func SealVersion(t RecordType, version byte, key, payload []byte) []byte {
	b := make([]byte, envelopeSize, envelopeSize+len(payload))
	b[0], b[1], b[2], b[3] = 'C', 'S', byte(t), version
	binary.BigEndian.PutUint32(b[4:], recordSum(b, key, payload))
	return append(b, payload...)
}

// FormatError is a record that cannot be read. It matches ErrDamaged or, when
// the record is intact but newer, ErrNewerFormat.
type FormatError struct {
	Problem string
	// Version is what the record says, when it is newer.
	Version int
}

func (e *FormatError) Error() string { return e.Problem }

// Is matches ErrNewerFormat when Version is set, else ErrDamaged.
func (e *FormatError) Is(target error) bool {
	if e.Version > FormatVersion {
		return target == ErrNewerFormat
	}
	return target == ErrDamaged
}

// Open checks the envelope of record, read from under key, and returns its
// payload, which shares record's memory. Errors are *FormatError: damage and
// newer formats are told apart.
func Open(t RecordType, key, record []byte) ([]byte, error) {
	bad := func(format string, a ...any) ([]byte, error) {
		return nil, &FormatError{Problem: fmt.Sprintf(format, a...)}
	}
	if len(record) < envelopeSize {
		return bad("record of %d bytes is shorter than its envelope of %d", len(record), envelopeSize)
	}
	if record[0] != 'C' || record[1] != 'S' {
		return bad("record does not start with the magic CS")
	}
	if want, got := binary.BigEndian.Uint32(record[4:]), recordSum(record, key, record[envelopeSize:]); want != got {
		return bad("checksum is %08x, recorded %08x", got, want)
	}
	if RecordType(record[2]) != t {
		return bad("record has type %q where %q belongs", record[2], byte(t))
	}
	switch v := int(record[3]); {
	case v == 0:
		return bad("record has format 0, which was never written")
	case v > FormatVersion:
		return nil, &FormatError{Problem: fmt.Sprintf("record has format %d, this program reads up to %d; use a newer program", v, FormatVersion), Version: v}
	}
	return record[envelopeSize:], nil
}

// IsDamage reports whether err is a damaged record, as opposed to a newer one.
func IsDamage(err error) bool { return errors.Is(err, ErrDamaged) }
