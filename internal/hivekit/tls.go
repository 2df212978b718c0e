package hivekit

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os/exec"
	"path/filepath"

	"github.com/commitstep/engine/internal/testkit/jvm"
)

// keystorePassword protects nothing: the key is made for one server of one test.
const keystorePassword = "changeit"

func (s *Server) keystore() string { return filepath.Join(s.Dir, "conf", "keystore.p12") }

// makeCertificate makes a key and a certificate for the loopback.
func (s *Server) makeCertificate(st *jvm.Starter) error {
	store := []string{"-keystore", s.keystore(), "-storetype", "PKCS12", "-storepass", keystorePassword, "-alias", "hive"}
	if _, err := st.Run(exec.Command(s.tools.keytool(), append([]string{"-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1",
		"-validity", "30", "-dname", "CN=hive for tests", "-ext", "san=ip:127.0.0.1,dns:localhost"}, store...)...)); err != nil {
		return err
	}
	pem, err := exec.Command(s.tools.keytool(), append([]string{"-exportcert", "-rfc"}, store...)...).Output()
	s.Cert = string(pem)
	return err
}

// TLS trusts this server and no other; nil when it does not speak TLS.
func (s *Server) TLS() (*tls.Config, error) {
	if s.Cert == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(s.Cert)) {
		return nil, errors.New("hivekit: keytool printed no certificate")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
