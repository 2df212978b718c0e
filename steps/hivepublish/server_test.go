package hivepublish

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// One server must not have two names, however its address is spelled.
func TestOneAddressHasManySpellings(t *testing.T) {
	t.Parallel()
	for _, same := range []string{"127.0.0.1:10000", "localhost:10000", "LOCALHOST.:10000", "127.0.0.1:010000", "[::ffff:127.0.0.1]:10000"} {
		require.True(t, sameEndpoint("127.0.0.1:10000", same), same)
	}
	for _, other := range []string{"127.0.0.2:10000", "127.0.0.1:10001", "hive:10000"} {
		require.False(t, sameEndpoint("127.0.0.1:10000", other), other)
	}
}
