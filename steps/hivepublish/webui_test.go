package hivepublish

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// The web UI is behind certificates of the same authority as the server, under a
// name of its own.
func TestWebUIWithTLS(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) }))
	t.Cleanup(web.Close)
	pool := x509.NewCertPool()
	pool.AddCert(web.Certificate())
	for _, roots := range []*x509.CertPool{pool, x509.NewCertPool()} {
		s, err := Connect("dw", Config{Address: "127.0.0.1:1", WebUI: web.URL, TLS: &tls.Config{RootCAs: roots, ServerName: "hs2.example.org", MinVersion: tls.VersionTLS12}})
		require.NoError(t, err)
		_, err = s.list.Find(t.Context(), "token")
		if roots == pool {
			require.NoError(t, err)
		} else {
			require.Error(t, err, "somebody else's certificate will do")
		}
		require.NoError(t, s.Close())
	}
}
