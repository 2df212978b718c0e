package boltstore

// A file system that has to find room for a page must write its journal before
// fdatasync may return, and so must wait for whatever else is in there. Most
// commits add a page of history, so that would be the rule. Therefore the file
// is enlarged before it is needed, by zeros that are really written, a chunk at
// a time: most commits then only overwrite what is there. docs/adr/0002 has the
// measurements.

const (
	aheadChunk = 1 << 20
	// aheadSmall is the chunk of a file that has not reached aheadChunk.
	aheadSmall = 64 << 10
)

// ahead enlarges the file if less than a part of a chunk is left beyond size,
// where the pages of the last commit end. It is called by the committer before
// anything of the next commit is written, so that nothing in use can be hit.
// Failing is harmless: the commit then finds room for itself, or fails by
// itself.
func (s *Store) ahead(size int64) {
	grown := size - s.lastSize
	s.lastSize = size
	chunk := int64(aheadChunk)
	if size < aheadChunk {
		chunk = aheadSmall
	}
	s.zeroed = max(s.zeroed, size)
	// Large writes pay for the journal once per megabyte anyhow.
	if grown > chunk/4 || size+chunk/4 < s.zeroed {
		return
	}
	if s.zeros == nil {
		s.zeros = make([]byte, aheadChunk)
	}
	if _, err := s.own.file.WriteAt(s.zeros[:chunk], s.zeroed); err == nil {
		s.zeroed += chunk
	}
}
