//go:build race

package integration_test

// raceEnabled says that the race detector watches, so figures mean little.
const raceEnabled = true
