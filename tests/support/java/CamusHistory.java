package com.linkedin.camus.etl.kafka.common;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.DataInput;
import java.io.DataOutput;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.MapWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.SequenceFile;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.io.Writable;

/**
 * Writes files of offsets as Camus does, with Hadoop's own SequenceFile and a key of Camus' name and layout.
 *
 * <p>Each line of standard input is {@code {"path": …, "compression": "NONE", "keys": [[topic, partition, offset], …]}},
 * each line of standard output {@code {}}.
 */
public final class CamusHistory {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      write(new ObjectMapper().readTree(line));
      System.out.println("{}");
    }
  }

  private static void write(JsonNode wanted) throws IOException {
    try (SequenceFile.Writer writer =
        SequenceFile.createWriter(
            new Configuration(),
            SequenceFile.Writer.file(new Path(wanted.get("path").asText())),
            SequenceFile.Writer.keyClass(EtlKey.class),
            SequenceFile.Writer.valueClass(NullWritable.class),
            SequenceFile.Writer.compression(
                SequenceFile.CompressionType.valueOf(wanted.get("compression").asText())))) {
      for (JsonNode key : wanted.get("keys")) {
        writer.append(new EtlKey(key.get(0).asText(), key.get(1).asInt(), key.get(2).asLong()), NullWritable.get());
      }
    }
  }
}

/** What Camus writes of a partition that was read up to {@code offset}. */
final class EtlKey implements Writable {
  private final String topic;
  private final int partition;
  private final long offset;

  EtlKey(String topic, int partition, long offset) {
    this.topic = topic;
    this.partition = partition;
    this.offset = offset;
  }

  @Override
  public void write(DataOutput out) throws IOException {
    MapWritable properties = new MapWritable();
    properties.put(new Text("message.size"), new LongWritable(1024));
    out.writeUTF("leader-" + partition);
    out.writeInt(partition);
    out.writeLong(offset - 1);
    out.writeLong(offset);
    out.writeLong(-1L);
    out.writeUTF(topic);
    out.writeLong(1_400_000_000_000L);
    out.writeUTF("server");
    out.writeUTF("service");
    properties.write(out);
  }

  @Override
  public void readFields(DataInput in) {
    throw new UnsupportedOperationException();
  }
}
