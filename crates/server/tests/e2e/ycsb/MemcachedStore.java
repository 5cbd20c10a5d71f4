// YCSB's way to a memcached server. YCSB's own memcached binding is not on Maven Central; this does what it does, with the
// same client (spymemcached, text protocol): a record is one item, its fields JSON; a read that finds nothing is NOT_FOUND. It keeps nothing,
// and scans nothing (so workload E cannot be run, as with the original).

import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.MemcachedClient;
import org.codehaus.jackson.JsonNode;
import org.codehaus.jackson.map.ObjectMapper;
import org.codehaus.jackson.node.ObjectNode;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

public class MemcachedStore extends DB {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long OPERATION_MAX_MS = 30_000;
    private MemcachedClient client;

    @Override
    public void init() throws DBException {
        String[] host = getProperties().getProperty("memcached.hosts").split(":");
        try {
            client = new MemcachedClient(
                new ConnectionFactoryBuilder()
                    .setProtocol(ConnectionFactoryBuilder.Protocol.TEXT)
                    .setOpTimeout(OPERATION_MAX_MS)
                    .build(),
                List.of(new InetSocketAddress(host[0], Integer.parseInt(host[1]))));
        } catch (Exception e) {
            throw new DBException(e);
        }
    }

    @Override
    public void cleanup() {
        client.shutdown();
    }

    private static String name(String table, String key) {
        return table + "-" + key;
    }

    private static String text(Map<String, ByteIterator> values) throws Exception {
        ObjectNode node = JSON.createObjectNode();
        for (Map.Entry<String, String> field : StringByteIterator.getStringMap(values).entrySet()) {
            node.put(field.getKey(), field.getValue());
        }
        return JSON.writeValueAsString(node);
    }

    private static Map<String, ByteIterator> fields(String text, Set<String> wanted) throws Exception {
        Map<String, ByteIterator> found = new HashMap<>();
        Iterator<Map.Entry<String, JsonNode>> all = JSON.readTree(text).getFields();
        while (all.hasNext()) {
            Map.Entry<String, JsonNode> field = all.next();
            if (wanted == null || wanted.isEmpty() || wanted.contains(field.getKey())) {
                found.put(field.getKey(), new StringByteIterator(field.getValue().asText()));
            }
        }
        return found;
    }

    @Override
    public Status read(String table, String key, Set<String> wanted, Map<String, ByteIterator> result) {
        try {
            Object text = client.get(name(table, key));
            if (text == null) {
                return Status.NOT_FOUND;
            }
            result.putAll(fields((String) text, wanted));
            return Status.OK;
        } catch (Exception e) {
            return Status.ERROR;
        }
    }

    @Override
    public Status scan(String table, String key, int count, Set<String> wanted, Vector<HashMap<String, ByteIterator>> result) {
        return Status.NOT_IMPLEMENTED;
    }

    // As the original: the record becomes what is given, and must have been there.
    @Override
    public Status update(String table, String key, Map<String, ByteIterator> values) {
        try {
            return client.replace(name(table, key), 0, text(values)).get() ? Status.OK : Status.NOT_FOUND;
        } catch (Exception e) {
            return Status.ERROR;
        }
    }

    @Override
    public Status insert(String table, String key, Map<String, ByteIterator> values) {
        try {
            return client.add(name(table, key), 0, text(values)).get() ? Status.OK : Status.UNEXPECTED_STATE;
        } catch (Exception e) {
            return Status.ERROR;
        }
    }

    @Override
    public Status delete(String table, String key) {
        try {
            return client.delete(name(table, key)).get() ? Status.OK : Status.NOT_FOUND;
        } catch (Exception e) {
            return Status.ERROR;
        }
    }
}
