package faultproxy_test

import (
	"encoding/binary"
	"io"
	"testing"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/stretchr/testify/require"
)

// A login with SASL PLAIN and two calls, as Thrift lays them out.
func TestSASLPlainMessagesAreCut(t *testing.T) {
	t.Parallel()
	login := func(status byte, text string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{status}, uint32(len(text))), text...)
	}
	call := func(name string) []byte {
		b := binary.BigEndian.AppendUint32([]byte{0x80, 1, 0, 1}, uint32(len(name)))
		return append(append(b, name...), 0, 0, 0, 1, 0)
	}
	frame := func(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	sent := [][]byte{login(1, "PLAIN"), login(2, "\x00ann\x00secret"), frame(call("OpenSession")), frame(call("ExecuteStatement"))}
	r, w := io.Pipe()
	go func() {
		for _, m := range sent {
			for _, b := range m { // one byte at a time, as a network may
				_, _ = w.Write([]byte{b})
			}
		}
		_ = w.Close()
	}()
	s := faultproxy.SASLPlain.New(r)
	for i, want := range sent {
		m, err := s.Next()
		require.NoError(t, err)
		require.Equal(t, want, m.Data)
		require.Equal(t, i > 0, m.Turn)
		require.Equal(t, []string{"", "", "OpenSession", "ExecuteStatement"}[i], faultproxy.ThriftMethod(m.Data))
	}
	_, err := s.Next()
	require.ErrorIs(t, err, io.EOF)
	http := append([]byte("POST /cliservice HTTP/1.1\r\nContent-Length: 20\r\n\r\n"), call("GetInfo")...)
	require.Equal(t, "GetInfo", faultproxy.ThriftMethod(http))
	for _, none := range []string{"", "\x80\x01\x00\x01", "\x80\x01\x00\x01\x7f\xff\xff\xffA", "\x80\x01\x00\x02\x00\x00\x00\x01A"} {
		require.Empty(t, faultproxy.ThriftMethod([]byte(none)))
	}
}
