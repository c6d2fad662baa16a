// Command clients is unmodified franz-go for the tests in tests/component/broker.
//
//	clients round ADDRESS              everything once; each line is a name, a tab and what was told, as JSON
//	clients write ADDRESS TOPIC        idempotent records 0, 1 … until standard input ends;
//	                                   a line for each acknowledged one: number, partition, offset
//	clients read ADDRESS TOPIC GROUP   a member that commits what it read until standard input ends; lines
//	                                   "read PARTITION OFFSET VALUE" and "committed PARTITION OFFSET"
//	clients copy ADDRESS FROM TO ID    from one topic to the other in transactions with the offsets of group ID,
//	                                   until standard input ends; a line for each transaction: committed, aborted
//	                                   or lost, and how many records
//
// Whatever fails that the client does not go on from itself ends it with 1.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 60 * time.Second

var (
	out   = bufio.NewWriter(os.Stdout)
	outMu sync.Mutex
)

func main() {
	verbs := map[string]func(context.Context, []string){"round": round, "write": write, "read": read, "copy": copyOver}
	ctx, cancel := context.WithCancel(context.Background())
	if os.Args[1] != "round" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	verbs[os.Args[1]](ctx, os.Args[2:])
	outMu.Lock()
	defer outMu.Unlock()
	check(out.Flush())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		outMu.Lock()
		_ = out.Flush()
		os.Exit(1)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func say(format string, values ...any) {
	outMu.Lock()
	defer outMu.Unlock()
	fmt.Fprintf(out, format+"\n", values...)
	check(out.Flush())
}

func tell(name string, told any) {
	say("%s\t%s", name, must(json.Marshal(told)))
}

func client(address string, options ...kgo.Opt) *kgo.Client {
	usual := []kgo.Opt{
		kgo.SeedBrokers(address),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.MetadataMinAge(50 * time.Millisecond),
	}
	return must(kgo.NewClient(append(usual, options...)...))
}

func round(_ context.Context, arguments []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	address := arguments[0]
	plain := client(address)
	defer plain.Close()
	admin := kadm.NewClient(plain)
	roundOfTopics(ctx, admin)
	roundOfCodecs(ctx, address, admin)
	roundOfGroups(ctx, address, admin)
	roundOfTransactions(ctx, address, admin)
}

func roundOfTopics(ctx context.Context, admin *kadm.Client) {
	minute, long := "60000", "x"
	must(admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &minute}, "go-topic"))
	_, err := admin.CreateTopic(ctx, 2, 1, nil, "go-topic")
	tell("created again", errors.Is(err, kerr.TopicAlreadyExists))
	_, err = admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &long}, "go-other")
	tell("created wrong", errors.Is(err, kerr.InvalidConfig))
	metadata := must(admin.Metadata(ctx, "go-topic"))
	topic := metadata.Topics["go-topic"]
	tell("metadata", []any{len(metadata.Brokers), metadata.Controller, topic.Partitions.Numbers(), topic.IsInternal})
	check(must(admin.UpdatePartitions(ctx, 5, "go-topic")).Error())
	tell("partitions", must(admin.ListTopics(ctx, "go-topic"))["go-topic"].Partitions.Numbers())
	hour := "3600000"
	change := []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "segment.ms", Value: &hour},
		{Op: kadm.DeleteConfig, Name: "retention.ms"},
	}
	altered := must(admin.AlterTopicConfigs(ctx, change, "go-topic"))
	check(must(altered.On("go-topic", nil)).Err)
	described := must(must(admin.DescribeTopicConfigs(ctx, "go-topic")).On("go-topic", nil))
	own := map[string]string{}
	for _, config := range described.Configs {
		if config.Source.String() == "DYNAMIC_TOPIC_CONFIG" {
			own[config.Key] = *config.Value
		}
	}
	tell("configured", own)
	for _, folders := range must(admin.DescribeAllLogDirs(ctx, nil)) {
		check(folders.Error())
	}
	check(must(admin.DeleteTopics(ctx, "go-topic")).Error())
	tell("deleted", !must(admin.ListTopics(ctx)).Has("go-topic"))
}

func roundOfCodecs(ctx context.Context, address string, admin *kadm.Client) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		topic := "go-" + name
		must(admin.CreateTopic(ctx, 1, 1, nil, topic))
		producer := client(address, kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(5*time.Millisecond))
		for number := range 1000 {
			record := &kgo.Record{
				Topic: topic, Key: fmt.Appendf(nil, "key %d", number), Value: fmt.Appendf(nil, "value %d", number),
				Timestamp: time.UnixMilli(1_700_000_000_000 + int64(number)),
				Headers:   []kgo.RecordHeader{{Key: "n", Value: fmt.Append(nil, number)}},
			}
			producer.Produce(ctx, record, func(record *kgo.Record, err error) {
				check(err)
				if record.Offset != int64(number) {
					check(fmt.Errorf("%s %d is at %d", topic, number, record.Offset))
				}
			})
		}
		check(producer.Flush(ctx))
		producer.Close()
		beginning := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
		reader := client(address, kgo.ConsumeTopics(topic), beginning)
		records := take(ctx, reader, 1000)
		reader.Close()
		for number, record := range records {
			told := fmt.Sprintf("%s %s %s %d", record.Key, record.Value, record.Headers[0].Value, record.Timestamp.UnixMilli())
			if expected := fmt.Sprintf("key %d value %[1]d %[1]d %d", number, 1_700_000_000_000+number); told != expected {
				check(fmt.Errorf("%s: read %q, expected %q", topic, told, expected))
			}
		}
		tell(name, len(records))
	}
	offset := func(listed kadm.ListedOffsets, err error) []int64 {
		check(err)
		found, ok := listed.Lookup("go-lz4", 0)
		if !ok {
			check(errors.New("no offsets of go-lz4"))
		}
		check(found.Err)
		return []int64{found.Offset, found.Timestamp}
	}
	tell("starts at", offset(admin.ListStartOffsets(ctx, "go-lz4")))
	tell("ends at", offset(admin.ListEndOffsets(ctx, "go-lz4")))
	tell("committed to", offset(admin.ListCommittedOffsets(ctx, "go-lz4")))
	tell("latest time", offset(admin.ListMaxTimestampOffsets(ctx, "go-lz4")))
	tell("after", offset(admin.ListOffsetsAfterMilli(ctx, 1_700_000_000_420, "go-lz4")))
	upTo := kadm.Offsets{}
	upTo.Add(kadm.Offset{Topic: "go-lz4", Partition: 0, At: 300})
	check(must(admin.DeleteRecords(ctx, upTo)).Error())
	tell("starts then at", offset(admin.ListStartOffsets(ctx, "go-lz4")))
}

// take polls until there are so many.
func take(ctx context.Context, reader *kgo.Client, count int) []*kgo.Record {
	var records []*kgo.Record
	for len(records) < count {
		fetches := reader.PollFetches(ctx)
		check(fetches.Err())
		records = append(records, fetches.Records()...)
	}
	return records
}

func roundOfGroups(ctx context.Context, address string, admin *kadm.Client) {
	must(admin.CreateTopic(ctx, 4, 1, nil, "go-shared"))
	send := func(from, to int) {
		producer := client(address)
		defer producer.Close()
		for number := from; number < to; number++ {
			record := &kgo.Record{Topic: "go-shared", Partition: int32(number % 4), Value: fmt.Append(nil, number)}
			check(producer.ProduceSync(ctx, record).FirstErr())
		}
	}
	member := func() *kgo.Client {
		beginning := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
		return client(address, kgo.ConsumerGroup("go-group"), kgo.ConsumeTopics("go-shared"), beginning,
			kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())
	}
	send(0, 100)
	first, second := member(), member()
	shares := func() []int {
		described := must(must(admin.DescribeGroups(ctx, "go-group")).On("go-group", nil))
		counts := []int{}
		for _, one := range described.Members {
			if assignment, ok := one.Assigned.AsConsumer(); ok {
				for _, topic := range assignment.Topics {
					counts = append(counts, len(topic.Partitions))
				}
			}
		}
		return append(counts, len(described.State))
	}
	seen := map[int64]int{}
	var mu sync.Mutex
	until := func(members []*kgo.Client, enough func() bool) {
		polling, stop := context.WithCancel(ctx)
		var all sync.WaitGroup
		for _, one := range members {
			all.Go(func() {
				for polling.Err() == nil {
					records := one.PollFetches(polling).Records()
					mu.Lock()
					for _, record := range records {
						seen[must(strconv.ParseInt(string(record.Value), 10, 64))]++
					}
					mu.Unlock()
					check(one.CommitUncommittedOffsets(ctx))
					one.AllowRebalance()
				}
			})
		}
		for !enough() {
			check(ctx.Err())
			time.Sleep(20 * time.Millisecond)
		}
		stop()
		all.Wait()
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
	stable := len("Stable")
	until([]*kgo.Client{first, second}, func() bool { return slices.Equal(shares(), []int{2, 2, stable}) && count() == 100 })
	send(100, 200)
	until([]*kgo.Client{first, second}, func() bool { return count() == 200 })
	first.CloseAllowingRebalance()
	until([]*kgo.Client{second}, func() bool { return slices.Equal(shares(), []int{4, stable}) })
	send(200, 300)
	until([]*kgo.Client{second}, func() bool { return count() == 300 })
	second.CloseAllowingRebalance()
	committed := map[int32]int64{}
	must(admin.FetchOffsets(ctx, "go-group")).Each(func(found kadm.OffsetResponse) { committed[found.Partition] = found.At })
	tell("group committed", committed)
	lag := must(admin.Lag(ctx, "go-group"))["go-group"]
	tell("group lag", []any{lag.State, lag.Lag.Total()})
	tell("group listed", must(admin.ListGroups(ctx))["go-group"].State)
	send(300, 304)
	third := member()
	until([]*kgo.Client{third}, func() bool { return count() == 304 })
	third.CloseAllowingRebalance()
	doubled := 0
	for _, times := range seen {
		doubled += times - 1
	}
	tell("group seen", []int{len(seen), doubled})
	check(must(admin.DeleteGroups(ctx, "go-group")).Error())
	_, exists := must(admin.ListGroups(ctx))["go-group"]
	tell("group deleted", !exists)
}

func roundOfTransactions(ctx context.Context, address string, admin *kadm.Client) {
	must(admin.CreateTopics(ctx, 1, 1, nil, "go-in", "go-out"))
	source := client(address)
	defer source.Close()
	for number := range 30 {
		check(source.ProduceSync(ctx, &kgo.Record{Topic: "go-in", Value: fmt.Append(nil, number)}).FirstErr())
	}
	session := must(kgo.NewGroupTransactSession(
		kgo.SeedBrokers(address), kgo.TransactionalID("go-id"), kgo.ConsumerGroup("go-copier"), kgo.ConsumeTopics("go-in"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	))
	number := 0
	for copied := 0; copied < 30; number++ {
		fetches := session.PollRecords(ctx, 10)
		check(fetches.Err())
		check(session.Begin())
		for _, record := range fetches.Records() {
			session.Produce(ctx, &kgo.Record{Topic: "go-out", Value: record.Value}, func(_ *kgo.Record, err error) { check(err) })
		}
		if number == 1 {
			check(session.Client().Flush(ctx))
			listed := must(admin.ListTransactions(ctx, nil, nil))["go-id"]
			described := must(admin.DescribeTransactions(ctx, "go-id"))["go-id"]
			tell("open", []string{listed.State, described.State})
		}
		// The second one is aborted, and its records come again.
		wanted := kgo.TransactionEndTry(number != 1)
		if committed := must(session.End(ctx, wanted)); committed != bool(wanted) {
			check(fmt.Errorf("transaction %d: committed is %t", number, committed))
		} else if committed {
			copied += fetches.NumRecords()
		}
	}
	session.Close()
	for name, isolation := range map[string]kgo.IsolationLevel{"committed": kgo.ReadCommitted(), "all": kgo.ReadUncommitted()} {
		beginning := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
		reader := client(address, kgo.ConsumeTopics("go-out"), beginning, kgo.FetchIsolationLevel(isolation))
		end := must(admin.ListEndOffsets(ctx, "go-out"))
		last, _ := end.Lookup("go-out", 0)
		expected := int(last.Offset) - number // a marker for each
		if name == "committed" {
			expected = 30
		}
		var values []string
		for _, record := range take(ctx, reader, expected) {
			values = append(values, string(record.Value))
		}
		reader.Close()
		tell("copied "+name, values)
	}
	offsets := must(admin.FetchOffsets(ctx, "go-copier"))
	found, _ := offsets.Lookup("go-in", 0)
	tell("copier committed", found.At)
	first := client(address, kgo.TransactionalID("go-fenced"))
	defer first.Close()
	check(first.BeginTransaction())
	check(first.ProduceSync(ctx, &kgo.Record{Topic: "go-in", Value: []byte("of the first")}).FirstErr())
	second := client(address, kgo.TransactionalID("go-fenced"))
	defer second.Close()
	check(second.BeginTransaction())
	check(second.ProduceSync(ctx, &kgo.Record{Topic: "go-in", Value: []byte("of the second")}).FirstErr())
	check(second.EndTransaction(ctx, kgo.TryCommit))
	err := first.EndTransaction(ctx, kgo.TryCommit)
	tell("fenced", errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch))
}

func write(ctx context.Context, arguments []string) {
	producer := client(arguments[0], kgo.ProducerLinger(2*time.Millisecond), kgo.MaxBufferedRecords(5000))
	defer producer.Close()
	for number := 0; ctx.Err() == nil; number++ {
		record := &kgo.Record{Topic: arguments[1], Partition: int32(number % 4), Value: fmt.Append(nil, number)}
		producer.Produce(context.Background(), record, func(record *kgo.Record, err error) {
			check(err)
			say("%s %d %d", record.Value, record.Partition, record.Offset)
		})
		if number%50 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	check(producer.Flush(context.Background()))
}

func read(ctx context.Context, arguments []string) {
	member := client(arguments[0], kgo.ConsumeTopics(arguments[1]), kgo.ConsumerGroup(arguments[2]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())
	defer member.CloseAllowingRebalance()
	for ctx.Err() == nil {
		polling, stop := context.WithTimeout(ctx, 200*time.Millisecond)
		records := member.PollRecords(polling, 20).Records() // errors are told for the time that the broker is away
		stop()
		for _, record := range records {
			say("read %d %d %s", record.Partition, record.Offset, record.Value)
		}
		uncommitted := member.UncommittedOffsets()
		if err := member.CommitUncommittedOffsets(context.Background()); err == nil {
			for partition, next := range uncommitted[arguments[1]] {
				say("committed %d %d", partition, next.Offset)
			}
		}
		member.AllowRebalance()
	}
}

// copyOver opens another session where the end of a transaction fails, which is final in this client: the new one begins
// with what was committed, and the transaction that is still open is ended by its start. It takes the place of the old one
// in the group by its instance id.
func copyOver(ctx context.Context, arguments []string) {
	for ctx.Err() == nil {
		copySession(ctx, arguments[0], arguments[1], arguments[2], arguments[3])
	}
}

func copySession(ctx context.Context, address, from, to, id string) {
	session := must(kgo.NewGroupTransactSession(
		kgo.SeedBrokers(address), kgo.TransactionalID(id), kgo.ConsumerGroup(id), kgo.InstanceID(id), kgo.ConsumeTopics(from),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(), kgo.HeartbeatInterval(200*time.Millisecond), kgo.MetadataMinAge(50*time.Millisecond),
	))
	defer session.Close()
	// Asked for now, since what the open transaction would commit keeps the offsets of the group from being told.
	if _, _, err := session.Client().ProducerID(ctx); err != nil {
		say("lost 0 %q", err)
		return
	}
	for ctx.Err() == nil {
		records := session.PollRecords(ctx, 20).Records()
		if len(records) == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			say("lost %d %q", len(records), err)
			return
		}
		for _, record := range records {
			session.Produce(context.Background(), &kgo.Record{Topic: to, Value: record.Value}, nil)
		}
		switch committed, err := session.End(context.Background(), kgo.TryCommit); {
		case err != nil:
			say("lost %d %q", len(records), err)
			return
		case committed:
			say("committed %d", len(records))
		default:
			say("aborted %d", len(records))
		}
	}
}
