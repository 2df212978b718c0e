//go:build soak

package hive_test

import "testing"

// What takes a server of its own, or hundreds of statements, for many minutes is
// in the long runs only: make soak.

func TestHiveServer2IsKilled(t *testing.T)           { testHiveServer2IsKilled(t) }
func TestErrorsHaveTheirClass(t *testing.T)          { testErrorsHaveTheirClass(t) }
func TestInsertOverwriteCutAtEveryCall(t *testing.T) { testInsertOverwriteCutAtEveryCall(t) }
func TestStageAndSwapCutAtEveryCall(t *testing.T)    { testStageAndSwapCutAtEveryCall(t) }
