// Package hs2test is a HiveServer2 for tests that says what a real one will not say
// on demand: it hangs, cuts, talks rubbish, fails in chosen ways, and forgets. It
// speaks the real protocol over TCP. What it answers by itself was seen from Hive
// 4.0.1, and a test of package hs2 holds both against each other. It executes no
// SQL.
//
//	s, err := hs2test.Start(hs2test.Options{})
//	defer s.Close()
//	s.Statement("INSERT", hs2test.Run{Steps: []hs2test.Step{hs2test.Running(), hs2test.Finished(3)}})
//	lost := s.On("ExecuteStatement", 1, hs2test.CutAfter)
//	… let the client work at s.Addr() …
//	<-lost.Fired()
package hs2test
